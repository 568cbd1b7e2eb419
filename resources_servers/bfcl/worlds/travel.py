"""Flights, credit cards and a budget."""

from copy import deepcopy
from datetime import date, datetime
from random import Random
from typing import Any, ClassVar

from .world import World

FARES = """\
SFO LAX 200 JFK 500 ORD 400 BOS 450 RMS 300 SBK 350 MPC 370 SVP 320 SHD 330 SSV 340 OKD 360 WLB 310
SFO CRH 380 ATV 390 PHV 420 GFD 430 CIA 700
LAX SFO 100 JFK 600 ORD 500 BOS 550 RMS 310 SBK 320 MPC 330 SVP 340 SHD 350 SSV 360 OKD 370 WLB 380
LAX CRH 390 ATV 400 PHV 410 GFD 420 HND 430
JFK ORD 300 BOS 250 RMS 450 SBK 460 MPC 470 SVP 480 SHD 490 SSV 500 OKD 510 WLB 520 CRH 530 ATV 540
JFK PHV 550 GFD 560 LAX 570 HND 800 PVG 950 PEK 1000
ORD LAX 180 BOS 200 RMS 350 SBK 360 MPC 370 SVP 380 SHD 390 SSV 400 OKD 410 WLB 420 CRH 430 ATV 440
ORD PHV 450 GFD 460
BOS RMS 400 SBK 410 MPC 420 SVP 430 SHD 440 SSV 450 OKD 460 WLB 470 CRH 480 ATV 490 PHV 500 GFD 510
RMS BOS 200 JFK 210 SBK 220 MPC 230 SVP 240 SHD 250 SSV 260 OKD 270 WLB 280 CRH 290 ATV 300 PHV 310
RMS GFD 320 LAX 330
SBK MPC 200 SVP 210 SHD 220 SSV 230 OKD 240 WLB 250 CRH 260 ATV 270 PHV 280 GFD 290
MPC SVP 210 SHD 220 SSV 230 OKD 240 WLB 250 CRH 260 ATV 270 PHV 280 GFD 290
SVP SHD 230 SSV 240 OKD 250 WLB 260 CRH 270 ATV 280 PHV 290 GFD 300
SHD SSV 220 OKD 230 WLB 240 CRH 250 ATV 260 PHV 270 GFD 280
SSV OKD 240 WLB 250 CRH 260 ATV 270 PHV 280 GFD 290
OKD WLB 230 CRH 240 ATV 250 PHV 260 GFD 270
WLB CRH 250 ATV 260 PHV 270 GFD 280
CRH ATV 240 PHV 250 GFD 260 SFO 270 RMS 280 HKG 290 JFK 300
ATV PHV 230 GFD 240
PHV GFD 220
LHR CDG 100
OKD LAX 220
"""
"""An airport, and the airports that it has flights to with their basic cost."""

AIRPORTS = """\
Rivermist RMS, Stonebrook SBK, Maplecrest MPC, Silverpine SVP, Shadowridge SHD, Paris CDG, \
London LHR, Sunset Valley SSV, Oakendale OKD, Willowbend WLB, Beijing PEK, Tokyo HND, \
Hong Kong HKG, Rome CIA, Crescent Hollow CRH, Autumnville ATV, Pinehaven PHV, Greenfield GFD, \
San Francisco SFO, Los Angeles LAX, New York JFK, Chicago ORD, Boston BOS"""

CITIES = {each[:-4]: each[-3:] for each in AIRPORTS.split(", ")}

CLASSES = {"economy": 1, "business": 2, "first": 5}

RATES = {
    **{"RMB": 7, "EUR": 0.8, "JPY": 110, "GBP": 0.7, "CAD": 1.3, "AUD": 1.4, "INR": 70},
    **{"RUB": 60, "BRL": 3.8, "MXN": 20},
}
"""Of one US dollar."""

THANKS = (
    "Thank you for contacting customer support. Your message has been received and we will get back"
    " to you shortly."
)

NO_TOKEN, EXPIRED = "Invalid access token", "Token expired"

Reply = dict[str, Any]


def _read_fares() -> dict[tuple[str, str], int]:
    found = {}
    for line in FARES.splitlines():
        start, *rest = line.split()
        pairs = zip(rest[::2], rest[1::2], strict=True)
        found |= {(start, end): int(cost) for end, cost in pairs}
    return found


BASE = _read_fares()


class TravelAPI(World):
    _defaults: ClassVar[dict[str, Any]] = {
        "credit_card_list": {},
        "booking_record": {},
        "access_token": None,
        "token_type": None,
        "token_expires_in": None,
        "token_scope": None,
        "user_first_name": None,
        "user_last_name": None,
        "budget_limit": None,
    }

    def __init__(self, scenario: dict[str, Any], long: dict[str, Any] | None) -> None:
        super().__init__(scenario, long)
        self._random = Random(scenario.get("random_seed", 141053))
        if long is not None:
            self.credit_card_list |= {
                key: deepcopy(card)
                for key, card in long["credit_card"].items()
                if key not in self.credit_card_list
            }
            self.booking_record |= {
                key: deepcopy(record)
                for key, record in long["booking_record"].items()
                if key not in self.booking_record
            }

    def _draw(self, digits: int) -> str:
        return str(self._random.randint(10 ** (digits - 1), 10**digits - 1))

    def _check(self, access_token: Any) -> str:
        """What is wrong with a token; empty if nothing is."""
        if self.token_expires_in == 0:
            return EXPIRED
        return "" if access_token == self.access_token else NO_TOKEN

    def authenticate_travel(
        self,
        client_id: str,
        client_secret: str,
        refresh_token: str,
        grant_type: str,
        user_first_name: str,
        user_last_name: str,
    ) -> Reply:
        self.token_expires_in, self.token_type = 2, "Bearer"
        self.access_token = self._draw(6)
        self.token_scope = grant_type
        self.user_first_name, self.user_last_name = user_first_name, user_last_name
        return {
            **{"expires_in": 2, "access_token": self.access_token},
            **{"token_type": "Bearer", "scope": grant_type},
        }

    def travel_get_login_status(self) -> Reply:
        return {"status": self.token_expires_in is not None and self.token_expires_in != 0}

    def get_budget_fiscal_year(
        self, lastModifiedAfter: str | None = None, includeRemoved: str | None = None
    ) -> Reply:
        return {"budget_fiscal_year": "2018"}

    def register_credit_card(
        self,
        access_token: str,
        card_number: str,
        expiration_date: str,
        cardholder_name: str,
        card_verification_number: int,
    ) -> Reply:
        if self.token_expires_in is None:
            return {"error": "Token not initialized"}
        if problem := self._check(access_token):
            return {"error": problem}
        if card_number in self.credit_card_list:
            return {"error": "Card already registered"}
        card_id = self._draw(12)
        self.credit_card_list[card_id] = {
            "card_number": card_number,
            "expiration_date": expiration_date,
            "cardholder_name": cardholder_name,
            "card_verification_number": card_verification_number,
            "balance": self._random.randint(10000, 99999),
        }
        return {"card_id": card_id}

    def get_flight_cost(
        self, travel_from: str, travel_to: str, travel_date: str, travel_class: str
    ) -> Reply:
        if (travel_from, travel_to) not in BASE:
            raise ValueError("No available route for the given airports.")
        if travel_class not in CLASSES:
            raise ValueError("Invalid travel class. Options are: economy, business, first.")
        factor = self._factor(travel_date, travel_class)
        fares = BASE.values() if self._long is not None else [BASE[travel_from, travel_to]]
        return {"travel_cost_list": [float(fare * factor) for fare in fares]}

    def _factor(self, travel_date: str, travel_class: str) -> int:
        digits = sum(int(each) for each in travel_date if each.isdigit())
        return CLASSES[travel_class] * (1 if digits % 2 else 2)

    def get_credit_card_balance(self, access_token: str, card_id: str) -> Reply:
        if problem := self._check(access_token):
            return {"error": problem}
        if card_id not in self.credit_card_list:
            known = f"Here are a list of card_id's: {[*self.credit_card_list]}"
            return {"error": f"Card not registered. {known}"}
        return {"card_balance": self.credit_card_list[card_id]["balance"]}

    def book_flight(
        self,
        access_token: str,
        card_id: str,
        travel_date: str,
        travel_from: str,
        travel_to: str,
        travel_class: str,
    ) -> Reply:
        problem = self._check(access_token) or self._check_booking(
            card_id, travel_date, travel_from, travel_to, travel_class
        )
        if problem:
            return {"booking_status": False, "error": problem}
        card = self.credit_card_list[card_id]
        cost = float(BASE[travel_from, travel_to] * self._factor(travel_date, travel_class))
        if card["balance"] < cost:
            return {"booking_status": False, "error": "Insufficient funds"}
        if self.budget_limit is not None and card["balance"] < self.budget_limit:
            return {"booking_status": False, "error": "Balance is less than budget limit"}
        card["balance"] -= cost
        booking_id, transaction_id = self._draw(7), self._draw(8)
        self.booking_record[booking_id] = {
            **{"card_id": card_id, "travel_date": travel_date, "travel_from": travel_from},
            **{"travel_to": travel_to, "travel_class": travel_class, "travel_cost": cost},
            "transaction_id": transaction_id,
        }
        return {
            **{"booking_id": booking_id, "transaction_id": transaction_id, "booking_status": True},
            "booking_history": self.booking_record if self._long is not None else {},
        }

    def _check_booking(
        self, card_id: str, travel_date: str, travel_from: str, travel_to: str, travel_class: str
    ) -> str:
        if card_id not in self.credit_card_list:
            return "Card not registered"
        if "balance" not in self.credit_card_list[card_id]:
            return "Balance not found"
        if travel_from not in CITIES.values():
            return f"Invalid departure airport code: {travel_from}"
        if travel_to not in CITIES.values():
            return f"Invalid destination airport code: {travel_to}"
        try:
            datetime.strptime(travel_date, "%Y-%m-%d")
        except ValueError:
            return "Invalid date format. Use YYYY-MM-DD."
        if travel_class not in CLASSES:
            return f"Invalid travel class. Must be one of {[*CLASSES]}"
        if (travel_from, travel_to) not in BASE:
            return "No available route for the given airports."
        return ""

    def retrieve_invoice(
        self, access_token: str, booking_id: str | None = None, insurance_id: str | None = None
    ) -> Reply:
        if problem := self._check(access_token):
            return {"error": problem}
        if booking_id not in self.booking_record:
            return {"error": "Booking not found"}
        record = self.booking_record[booking_id]
        names = ("travel_date", "travel_from", "travel_to", "travel_class", "travel_cost")
        shown = {name: record[name] for name in (*names, "transaction_id")}
        return {"invoice": {"booking_id": booking_id, **shown}}

    def get_booking_history(self, access_token: str) -> Reply:
        if problem := self._check(access_token):
            return {"error": problem}
        return {"booking_history": deepcopy(self.booking_record)}

    def list_all_airports(self) -> list[str]:
        return [*CITIES.values()]

    def cancel_booking(self, access_token: str, booking_id: str) -> Reply:
        problem = self._check(access_token)
        if not problem and booking_id not in self.booking_record:
            problem = "Booking not found"
        if problem:
            return {"cancel_status": False, "error": problem}
        record = self.booking_record[booking_id]
        self.credit_card_list[record["card_id"]]["balance"] += record["travel_cost"]
        del self.booking_record[booking_id]
        return {"cancel_status": True}

    def compute_exchange_rate(
        self, base_currency: str, target_currency: str, value: float
    ) -> Reply:
        if base_currency == "USD" and target_currency in RATES:
            return {"exchanged_value": float(value * RATES[target_currency])}
        if target_currency == "USD" and base_currency in RATES:
            return {"exchanged_value": round(value / RATES[base_currency], 2)}
        raise ValueError("No available exchange rate for the given currencies.")

    def verify_traveler_information(
        self, first_name: str, last_name: str, date_of_birth: str, passport_number: str
    ) -> Reply:
        own, given = f"{self.user_first_name} {self.user_last_name}", f"{first_name} {last_name}"
        problem = ""
        if (self.user_first_name, self.user_last_name) != (first_name, last_name):
            problem = f"Cannot book flight information for another user.Expected {own}, got {given}"
        else:
            try:
                born, today = datetime.strptime(date_of_birth, "%Y-%m-%d"), date.today()
                is_before = (today.month, today.day) < (born.month, born.day)
                if today.year - born.year - is_before < 18:
                    problem = "Traveler must be at least 18 years old."
                elif not passport_number.startswith("US"):
                    problem = "Passport must be issued by the United States."
            except ValueError:
                problem = "Invalid date of birth format. Please use YYYY-MM-DD."
        more = {"verification_failure": problem} if problem else {}
        return {"verification_status": not problem, **more}

    def set_budget_limit(self, access_token: str, budget_limit: float) -> Reply:
        if problem := self._check(access_token):
            return {"error": problem}
        self.budget_limit = float(budget_limit)
        return {"budget_limit": self.budget_limit}

    def get_nearest_airport_by_city(self, location: str) -> Reply:
        return {"nearest_airport": CITIES.get(location, "Unknown")}

    def purchase_insurance(
        self,
        access_token: str,
        insurance_type: str,
        booking_id: str,
        insurance_cost: float,
        card_id: str,
    ) -> Reply:
        problem = self._check(access_token)
        if not problem and self.budget_limit is not None and self.budget_limit < insurance_cost:
            problem = "Exceeded budget limit"
        if not problem and booking_id not in self.booking_record:
            problem = "Booking not found"
        if not problem and card_id not in self.credit_card_list:
            problem = "Credit card not registered"
        if problem:
            return {"insurance_status": False, "error": problem}
        self.credit_card_list[card_id]["balance"] -= insurance_cost
        return {"insurance_id": self._draw(9), "insurance_status": True}

    def contact_customer_support(self, booking_id: str, message: str) -> Reply:
        if booking_id not in self.booking_record:
            return {"error": "Booking not found"}
        return {"customer_support_message": THANKS}

    def get_all_credit_cards(self) -> Reply:
        return {"credit_card_list": self.credit_card_list}
