"""Posts of a social network."""

from typing import Any, ClassVar

from .world import World

Reply = dict[str, Any]


class TwitterAPI(World):
    _defaults: ClassVar[dict[str, Any]] = {
        "username": "john",
        "password": "john123",
        "authenticated": False,
        "tweets": {},
        "comments": {},
        "retweets": {},
        "following_list": ["alice", "bob"],
        "tweet_counter": 0,
    }

    def __init__(self, scenario: dict[str, Any], long: dict[str, Any] | None) -> None:
        super().__init__(scenario, long)
        self.tweets = {int(key): tweet for key, tweet in self.tweets.items()}

    def authenticate_twitter(self, username: str, password: str) -> Reply:
        is_right = username == self.username and password == self.password
        self.authenticated = self.authenticated or is_right
        return {"authentication_status": is_right}

    def posting_get_login_status(self) -> Reply:
        return {"login_status": bool(self.authenticated)}

    def post_tweet(
        self, content: str, tags: list[str] | None = None, mentions: list[str] | None = None
    ) -> Reply:
        if not self.authenticated:
            return _refuse("posting")
        tweet = {
            "id": self.tweet_counter,
            "username": self.username,
            "content": content,
            "tags": [] if tags is None else tags,
            "mentions": [] if mentions is None else mentions,
        }
        self.tweets[self.tweet_counter] = tweet
        self.tweet_counter += 1
        return tweet

    def retweet(self, tweet_id: int) -> Reply:
        if not self.authenticated:
            return _refuse("retweeting")
        if tweet_id not in self.tweets:
            return _miss(tweet_id)
        own = self.retweets.setdefault(self.username, [])
        if tweet_id in own:
            return {"retweet_status": "Already retweeted"}
        own.append(tweet_id)
        return {"retweet_status": "Successfully retweeted"}

    def comment(self, tweet_id: int, comment_content: str) -> Reply:
        if not self.authenticated:
            return _refuse("commenting")
        if tweet_id not in self.tweets:
            return _miss(tweet_id)
        said = {"username": self.username, "content": comment_content}
        self.comments.setdefault(tweet_id, []).append(said)
        return {"comment_status": "Comment added successfully"}

    def mention(self, tweet_id: int, mentioned_usernames: list[str]) -> Reply:
        if tweet_id not in self.tweets:
            return _miss(tweet_id)
        self.tweets[tweet_id]["mentions"].extend(mentioned_usernames)
        return {"mention_status": "Users mentioned successfully"}

    def follow_user(self, username_to_follow: str) -> Reply:
        if not self.authenticated:
            return _refuse("following")
        if username_to_follow in self.following_list:
            return {"follow_status": False}
        self.following_list.append(username_to_follow)
        return {"follow_status": True}

    def list_all_following(self) -> Reply:
        if not self.authenticated:
            return _refuse("listing following")
        return {"following_list": self.following_list}

    def unfollow_user(self, username_to_unfollow: str) -> Reply:
        if not self.authenticated:
            return _refuse("unfollowing")
        if username_to_unfollow not in self.following_list:
            return {"unfollow_status": False}
        self.following_list.remove(username_to_unfollow)
        return {"unfollow_status": True}

    def get_tweet(self, tweet_id: int) -> Reply:
        return self.tweets[tweet_id] if tweet_id in self.tweets else _miss(tweet_id)

    def get_user_tweets(self, username: str) -> list[Reply]:
        return [tweet for tweet in self.tweets.values() if tweet["username"] == username]

    def search_tweets(self, keyword: str) -> list[Reply]:
        word = keyword.lower()
        return [
            tweet
            for tweet in self.tweets.values()
            if word in tweet["content"].lower() or word in [tag.lower() for tag in tweet["tags"]]
        ]

    def get_tweet_comments(self, tweet_id: int) -> Any:
        return self.comments.get(tweet_id, []) if tweet_id in self.tweets else _miss(tweet_id)

    def get_user_stats(self, username: str) -> Reply:
        return {
            "tweet_count": len(self.get_user_tweets(username)),
            "following_count": len(self.following_list) if username == self.username else 0,
            "retweet_count": len(self.retweets.get(username, [])),
        }


def _refuse(what: str) -> Reply:
    return {"error": f"User not authenticated. Please authenticate before {what}."}


def _miss(tweet_id: Any) -> Reply:
    return {"error": f"Tweet with ID {tweet_id} not found."}
