"""The programs that the multi-turn tasks of BFCL use, as classes whose public methods are tools."""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

from .files import GorillaFileSystem
from .messages import MessageAPI
from .numbers import MathAPI
from .posts import TwitterAPI
from .tickets import TicketAPI
from .trading import TradingBot
from .travel import TravelAPI
from .vehicle import VehicleControlAPI
from .world import World

CLASSES: dict[str, type[World]] = {
    each.__name__: each
    for each in (
        *(GorillaFileSystem, MathAPI, MessageAPI, TwitterAPI),
        *(TicketAPI, TradingBot, TravelAPI, VehicleControlAPI),
    )
}

LONG = Path(__file__).parents[1] / "data" / "long_context.json.gz"


@cache
def read_long_texts() -> dict[str, Any]:
    """What the tasks with a long context have more of."""
    found = json.loads(gzip.decompress(LONG.read_bytes()))
    # the published list ends with an ellipsis of Python
    found["watch_list"] = [... if each is None else each for each in found["watch_list"]]
    return found
