"""A stand-in for the `vllm` command: a real process that prints, answers, fails and dies like it.

    fake_vllm.py serve MODEL [options] --host H --port P

What it does beside answering is told by FAKE_VLLM, JSON in the environment: `fails` (a file of
lines that it prints before it ends with status 1), `fails_after` (starts that go well before),
`load_s`, `answer_s`, `refusals` (chats that are answered 429 first), `deaf` (never ready),
`scale_out` (false: tokens are not taken), `log_prob` (of a token that is certain), `longest`
(generation that is not refused), `param` (that this is refused with), `gate` (a file without which
no chat is answered), `render_gate` (the same for renderings), `hold_after` (tokens of a generation
that is held until it is aborted), `holds` (text of the prompts that this is for; else all). Each
start is appended to the file `starts`, each request to the file `asked`. POST /crash ends it at
once, POST /sick makes it answer 500 and its /health 503, and POST /well ends that.
"""

import asyncio
import gc
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

import fake_weights
from aiohttp import web

PLAN = json.loads(os.environ.get("FAKE_VLLM", "{}"))

SAMPLED = [1011, 1012, 2]

CONTEXT = 2048

LOADING = (
    "(APIServer pid=1) INFO 11-21 21:48:20 [model.py:733] Resolved architecture: Qwen3ForCausalLM",
    "(Worker pid=3) INFO 11-21 21:48:44 [cpu_model_runner.py:68] Starting to load model {model}...",
    "Loading safetensors checkpoint shards:   0% Completed | 0/1 [00:00<?, ?it/s]\r"
    "Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00, 111.10it/s]",
    "(Worker pid=3) INFO 11-21 21:48:45 [default_loader.py:501] Loading weights took 0.01 seconds",
    "(EngineCore pid=2) INFO 11-21 21:48:45 [kv_cache_utils.py:2327] CPU KV cache size: 524,288"
    " tokens, Maximum concurrency for 2,048 tokens per request: 256.00x",
)

METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
vllm:num_preemptions_total{engine="0",model_name="m"} 7.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.7952977295207908e+09
"""


def main() -> None:
    argv = sys.argv[1:]
    _noted(
        "starts", {"argv": argv, "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "pid": os.getpid()}
    )
    for line in LOADING:
        _say(line.format(model=argv[1]))
    num_starts = len(Path(PLAN["starts"]).read_text().splitlines()) if "starts" in PLAN else 1
    if "fails" in PLAN and num_starts > PLAN.get("fails_after", 0):
        sys.exit(Path(PLAN["fails"]).read_text() + "\n")
    time.sleep(PLAN.get("load_s", 0))
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
    worker.start()  # as vLLM's engine core: it stays when the front is killed
    web.run_app(
        app(),
        host=argv[argv.index("--host") + 1],
        port=int(argv[argv.index("--port") + 1]),
        print=None,
    )
    worker.kill()
    gc.freeze()  # Python need not look for garbage before it ends


def app() -> web.Application:
    made = web.Application(client_max_size=1 << 26)
    made["sick"], made["held"] = False, {}
    made["refusals"] = [PLAN.get("refusals", 0)]
    made.router.add_get("/health", health)
    made.router.add_get("/metrics", metrics)
    made.router.add_post("/v1/chat/completions", chat)
    made.router.add_post("/v1/completions", complete)
    made.router.add_post("/v1/responses", respond)
    made.router.add_post("/tokenize", tokenize)
    made.router.add_post("/v1/chat/completions/render", render)
    made.router.add_post("/inference/v1/generate", generate)
    made.router.add_post("/v1/chat/completions/derender", derender)
    made.router.add_post("/inference/v1/abort_requests", abort)
    made.router.add_post("/{what:crash|sick|well}", befall)
    fake_weights.add_routes(made, PLAN)
    return made


async def health(request: web.Request) -> web.Response:
    return web.Response(status=503 if request.app["sick"] or PLAN.get("deaf") else 200)


async def metrics(request: web.Request) -> web.Response:
    return web.Response(text=METRICS)


async def befall(request: web.Request) -> web.Response:
    what = request.match_info["what"]
    if what == "crash":
        _say("(EngineCore pid=2) ERROR 11-21 21:50:00 [core.py:1] RuntimeError: gone")
        os._exit(1)
    request.app["sick"] = what == "sick"
    return web.Response()


async def chat(request: web.Request) -> web.Response:
    body = json.loads(await request.read())
    _noted("asked", {"pid": os.getpid(), "body": body, "key": request.headers.get("authorization")})
    if request.app["sick"]:
        return _error(500, "EngineCore encountered an issue", "InternalServerError", None)
    if request.app["refusals"][0]:
        request.app["refusals"][0] -= 1
        return _error(429, "too many requests", "TooManyRequests", None)
    text = str(body["messages"][-1]["content"])
    if "too long" in text or len(_rendered(body)) >= CONTEXT:
        return _error(400, "maximum context length is 2048", "BadRequestError", "input_tokens")
    if (wanted := body.get("max_tokens", 0)) > PLAN.get("longest", CONTEXT):
        return _error(400, f"{wanted} is too much", "BadRequestError", PLAN.get("param"))
    if "bad" in text:
        return _error(400, "input_tokens is not a parameter", "BadRequestError", "temperature")
    weights = request.app["weights"]
    first = await weights.sampled(body)
    await asyncio.sleep(PLAN.get("answer_s", 0))
    while "gate" in PLAN and not os.path.exists(PLAN["gate"]):  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.01)
    made = _completion(body, _rendered(body))
    if (last := await weights.sampled(body)) != "0":
        made["choices"][0]["message"]["content"] = f"{first} {last}"
    return web.json_response(made)


def _completion(body: dict, prompt: list[int]) -> dict:
    message = {"role": "assistant", "content": f"said by {os.getpid()}", "reasoning": None}
    if body.get("tools"):
        function = {"name": body["tools"][0]["function"]["name"], "arguments": '{"a": 1}'}
        call = {"id": "chatcmpl-tool-1", "type": "function", "function": function}
        message |= {"content": None, "tool_calls": [call], "reasoning": "I need it"}
    tokens = SAMPLED if body.get("return_token_ids") else None
    is_cut = body.get("max_tokens") == len(SAMPLED)
    logprobs = [{"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": []}] * 3
    choice = {
        "index": 0,
        "message": message,
        "logprobs": {"content": logprobs} if body.get("logprobs") else None,
        "finish_reason": "length" if is_cut else "tool_calls" if body.get("tools") else "stop",
        "token_ids": tokens,
    }
    usage = {"prompt_tokens": len(prompt), "completion_tokens": 3, "total_tokens": len(prompt) + 3}
    made = {"model": body["model"], "choices": [choice], "usage": usage}
    return {**made, "prompt_token_ids": prompt if tokens else None}


def _rendered(body: dict) -> list[int]:
    """One token a character, 1 before and 2 after each message: never the tokens of SAMPLED."""
    texts = [
        f"{each['role']}:{each.get('content') or each['tool_calls']}" for each in body["messages"]
    ]
    ids = [token for text in texts for token in (1, *map(ord, text), 2)]
    return ids + ([1] if body.get("add_generation_prompt", True) else [])


async def render(request: web.Request) -> web.Response:
    if not PLAN.get("scale_out", True):
        return _error(403, "Scale-out endpoints are disabled.", "PermissionDeniedError", None)
    body = json.loads(await request.read())
    _noted("rendered", {})
    while "render_gate" in PLAN and not os.path.exists(PLAN["render_gate"]):  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.01)
    sampling = {"temperature": body.get("temperature", 0.6), "max_tokens": 7, "stop": []}
    sampling |= {name: body[name] for name in ("stop", "presence_penalty") if name in body}
    return web.json_response({"token_ids": _rendered(body), "sampling_params": sampling})


async def generate(request: web.Request) -> web.Response:
    body = json.loads(await request.read())
    _noted("generated", body)
    if len(body["token_ids"]) >= CONTEXT:
        return _error(400, "The decoder prompt is longer", "BadRequestError", None)
    said = body["token_ids"][::-1].index(1)  # tokens behind the opening
    sampled, reason = SAMPLED[said:], "stop"
    takes_long = not said and PLAN.get("holds", "") in "".join(map(chr, body["token_ids"]))
    if takes_long and (held := PLAN.get("hold_after")):
        ended = request.app["held"][str(body.get("request_id"))] = asyncio.Event()
        _noted("held", {})
        await ended.wait()
        sampled, reason = SAMPLED[:held], "abort"
    content = [{"token_id": token, "logprob": -0.25} for token in sampled]
    choice = {"index": 0, "finish_reason": reason, "stop_reason": None, "token_ids": sampled}
    span = {"version": request.app["weights"].version, "start": 0, "end": len(sampled)}
    usage = {"prompt_tokens": len(body["token_ids"]), "completion_tokens": len(sampled)}
    choices = [{**choice, "logprobs": {"content": content}, "weight_versions": [span]}]
    return web.json_response({"model": "m", "choices": choices, "usage": usage})


async def abort(request: web.Request) -> web.Response:
    for each in json.loads(await request.read())["request_ids"]:
        name = each.removeprefix("generate-tokens-")
        _noted("aborted", {"name": name})
        request.app["held"][name].set()
    return web.Response()


async def derender(request: web.Request) -> web.Response:
    body = json.loads(await request.read())
    _noted("derendered", body)
    made = _completion({**body["chat_request"], "model": "m"}, [])
    made["choices"][0]["logprobs"] = body["generate_response"]["choices"][0]["logprobs"]
    return web.json_response(made)


async def respond(request: web.Request) -> web.Response:
    body = json.loads(await request.read())
    _noted("asked", {"body": body})
    if body.get("max_output_tokens", 0) > CONTEXT:
        return _error(400, "too much", "BadRequestError", "max_output_tokens")
    part = {"type": "output_text", "text": "vLLM's own", "annotations": []}
    item = {"type": "message", "role": "assistant", "content": [part]}
    return web.json_response({"id": "resp_1", "object": "response", "output": [item]})


async def tokenize(request: web.Request) -> web.Response:
    body = json.loads(await request.read())
    count = CONTEXT if "too long" in str(body) else len(_rendered(body))
    return web.json_response({"count": count, "max_model_len": CONTEXT})


async def complete(request: web.Request) -> web.Response:
    body = json.loads(await request.read())
    if body["prompt"] == "?":  # asked before the first turn with token ids
        log_probs = {"token_logprobs": [PLAN.get("log_prob", 0.0)]}
        return web.json_response({"choices": [{"text": "x", "logprobs": log_probs}]})
    _noted("asked", {"pid": os.getpid(), "body": body, "path": request.path})
    if "too long" in body["prompt"]:
        return _error(400, "maximum context length is 2048", "BadRequestError", "input_tokens")
    prompt = [ord(letter) for letter in body["prompt"]]
    wants_ids = body.get("return_token_ids")
    told = {"tokens": ["x"] * 3, "token_logprobs": [-0.5] * 3}
    choice = {
        "index": 0,
        "text": " continued",
        "logprobs": told if "logprobs" in body else None,
        "finish_reason": "length" if body.get("max_tokens") == len(SAMPLED) else "stop",
        "token_ids": SAMPLED if wants_ids else None,
        "prompt_token_ids": prompt if wants_ids else None,
    }
    usage = {"prompt_tokens": len(prompt), "completion_tokens": 3, "total_tokens": len(prompt) + 3}
    return web.json_response({"model": body["model"], "choices": [choice], "usage": usage})


def _error(status: int, message: str, kind: str, param: str | None) -> web.Response:
    told = {"message": message, "type": kind, "param": param, "code": status}
    return web.json_response({"error": told}, status=status)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _noted(file: str, what: dict) -> None:
    if file in PLAN:
        with open(PLAN[file], "a") as stream:
            stream.write(json.dumps(what) + "\n")


if __name__ == "__main__":
    main()
