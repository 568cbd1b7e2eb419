"""A buffer in a process of its own. What it holds is in a file too, so a kill loses nothing.

python examples/grpo/serve_buffer.py FILE --port 9500 --batch 32
"""

import argparse
import asyncio
from contextlib import suppress

from rollout_kit.rl import open_buffer, serve_buffer

VISIBILITY_S = 60
"""A batch is handed out again after this time. One of a trainer that was killed here comes back at
once."""


async def serve(args: argparse.Namespace) -> None:
    url, policy = f"memory:?spool={args.file}", {"batch": args.batch, "staleness": args.staleness}
    async with (
        await open_buffer(url, **policy, visibility_s=VISIBILITY_S) as buffer,
        serve_buffer(buffer, port=args.port) as url,
    ):
        print(f"the buffer listens on {url}", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", help="what it holds is written here")
    parser.add_argument("--port", type=int, default=9500)
    parser.add_argument("--batch", type=int, default=32, help="groups of a step of the trainer")
    parser.add_argument("--staleness", type=int, default=0, help="steps that groups may lag behind")
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
