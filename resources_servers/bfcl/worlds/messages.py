"""Messages between the users of a workspace."""

from random import Random
from typing import Any, ClassVar

from .world import World

LOGIN = {"error": "No user is currently logged in."}

ASKED = "Could you upload the file?"

Reply = dict[str, Any]


class MessageAPI(World):
    _defaults: ClassVar[dict[str, Any]] = {
        "generated_ids": [],
        "user_count": 4,
        "user_map": {"Alice": "USR001", "Bob": "USR002", "Catherine": "USR003", "Daniel": "USR004"},
        "inbox": [
            {"USR002": "My name is Alice. I want to connect."},
            {"USR003": ASKED},
            {"USR004": ASKED},
        ],
        "message_count": 3,
        "current_user": None,
    }

    def __init__(self, scenario: dict[str, Any], long: dict[str, Any] | None) -> None:
        super().__init__(scenario, long)
        self.generated_ids = set(self.generated_ids)
        self._random = Random(scenario.get("random_seed", 200191))

    def list_users(self) -> Reply:
        return {"user_list": list(self.user_map)}

    def get_user_id(self, user: str) -> Reply:
        if user not in self.user_map:
            return {"error": f"User '{user}' not found in the workspace."}
        return {"user_id": self.user_map[user]}

    def message_login(self, user_id: str) -> Reply:
        if user_id not in self.user_map.values():
            return {"login_status": False, "message": f"User ID '{user_id}' not found."}
        self.current_user = user_id
        return {"login_status": True, "message": f"User '{user_id}' logged in successfully."}

    def message_get_login_status(self) -> Reply:
        return {"login_status": bool(self.current_user)}

    def send_message(self, receiver_id: str, message: str) -> Reply:
        if not self.current_user:
            return dict(LOGIN)
        if receiver_id not in self.user_map.values():
            return {"error": f"Receiver ID '{receiver_id}' not found."}
        number = self._random.randint(10000, 99999)
        while number in self.generated_ids:
            number = self._random.randint(10000, 99999)
        self.generated_ids.add(number)
        self.inbox.append({receiver_id: message})
        self.message_count += 1
        return {
            "sent_status": True,
            "message_id": {"new_id": number},
            "message": f"Message sent to '{receiver_id}' successfully.",
        }

    def delete_message(self, receiver_id: str) -> Reply:
        if not self.current_user:
            return dict(LOGIN)
        for message in reversed(self.inbox):
            if next(iter(message)) == receiver_id:
                self.inbox.remove(message)
                return {
                    "deleted_status": True,
                    "receiver_id": receiver_id,
                    "message": f"Receiver {receiver_id}'s latest message deleted successfully.",
                }
        return {"error": f"Receiver ID {receiver_id} not found."}

    def view_messages_sent(self) -> Reply:
        if not self.current_user:
            return dict(LOGIN)
        sent: dict[str, list[str]] = {}
        for receiver, text in self._pairs():
            sent.setdefault(receiver, []).append(text)
        return {"messages": sent}

    def add_contact(self, user_name: str) -> Reply:
        if user_name in self.user_map:
            return {"error": f"User name '{user_name}' already exists."}
        self.user_count += 1
        user_id = f"USR{self.user_count:03}"
        if user_id in self.user_map.values():
            return {"error": f"User ID '{user_id}' already exists."}
        self.user_map[user_name] = user_id
        return {
            "added_status": True,
            "user_id": user_id,
            "message": f"Contact '{user_name}' added successfully.",
        }

    def search_messages(self, keyword: str) -> Reply:
        if not self.current_user:
            return dict(LOGIN)
        word = keyword.lower()
        found = [
            {"receiver_id": receiver, "message": text}
            for receiver, text in self._pairs()
            if word in text.lower()
        ]
        return {"results": found}

    def get_message_stats(self) -> Reply:
        if not self.current_user:
            return dict(LOGIN)
        contacts = {receiver for receiver, _ in self._pairs()}
        return {"stats": {"received_count": len(self.inbox), "total_contacts": len(contacts)}}

    def _pairs(self) -> list[tuple[str, str]]:
        return [next(iter(message.items())) for message in self.inbox]
