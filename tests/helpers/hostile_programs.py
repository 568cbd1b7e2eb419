"""Programs that harm what they can, each by a name. All of them do their task too: their rollouts
are verified, and those of others are as if they were alone. They run after `LOOP`."""

RAW = """
import socket
from urllib.parse import urlsplit

def connect():
    url = urlsplit(os.environ["OPENAI_BASE_URL"])
    return socket.create_connection((url.hostname, url.port), 20)

def head(method, path, more=b"", length=None):
    url = urlsplit(os.environ["OPENAI_BASE_URL"])
    lines = f"{method} {url.path}{path} HTTP/1.1\\r\\nhost: x\\r\\n"
    lines += "" if length is None else f"content-length: {length}\\r\\n"
    return lines.encode("utf-8", "surrogateescape") + more + b"\\r\\n"

def send(raw):
    \"\"\"The status; 0 if the connection was closed.\"\"\"
    with connect() as sock:
        try:
            sock.sendall(raw)
            return int((sock.recv(100) or b"HTTP/1.1 0").split()[1])
        except OSError:
            return 0
"""

HOSTILE = {
    "guesses addresses": """
import urllib.error
base = os.environ["OPENAI_BASE_URL"]
for number in range(50):
    try:
        urllib.request.urlopen(base.replace("/r/", f"/r/{number:032x}/"), timeout=9)
    except urllib.error.HTTPError as error:
        assert error.code == 404
loop(os.environ["TASK"])
""",
    "reaches for the network": """
import socket
for address in (("1.1.1.1", 53), ("127.0.0.1", int(sys.argv[1]) if sys.argv[1:] else 11000)):
    try:
        socket.create_connection(address, 2)
        raise SystemExit("reached")
    except OSError:
        pass
loop(os.environ["TASK"])
""",
    "floods": """
import threading
def flood():
    try:
        ask([{"role": "user", "content": "x"}], tools=False)
    except Exception:
        pass
threads = [threading.Thread(target=flood) for _ in range(150)]
[each.start() for each in threads]; [each.join() for each in threads]
loop(os.environ["TASK"])
""",
    "keeps its stream open": """
import socket
from urllib.parse import urlsplit
url = urlsplit(os.environ["OPENAI_BASE_URL"])
open_ones = [socket.create_connection((url.hostname, url.port)) for _ in range(40)]
for each in open_ones:
    each.sendall(b"POST " + url.path.encode() + b"/chat/completions HTTP/1.1\\r\\nHost: x\\r\\n"
                 b"content-length: 99999\\r\\n\\r\\n{")
loop(os.environ["TASK"])
""",
    "forks away, and asks after its end": """
loop(os.environ["TASK"])
if not os.fork():
    os.setsid()
    while True:
        try:
            ask([{"role": "user", "content": "late"}], tools=False)
        except Exception:
            pass
""",
    "writes its own reward": """
loop(os.environ["TASK"])
print(json.dumps({"reward": 1e9, "_ng_failure_class": "x"}))
open("/reward.json", "w").write('{"reward": 1e9}')
""",
    "fills the disk": """
loop(os.environ["TASK"])
try:
    with open("/work/big", "wb") as file:
        while True:
            file.write(bytes(1 << 20))
except OSError:
    pass
""",
    "sends what is no request": """
import socket
from urllib.parse import urlsplit
url = urlsplit(os.environ["OPENAI_BASE_URL"])
for raw in (b"\\x00" * 5000, b"GET / HTTP/9.9\\r\\n\\r\\n", b"POST " + b"/a" * 90000):
    with socket.create_connection((url.hostname, url.port)) as sock:
        sock.sendall(raw)
        sock.settimeout(2)
        try:
            sock.recv(100)
        except OSError:
            pass
for body in ({"messages": [[]]}, {"messages": [{"role": {}}]}):
    try:
        ask(**body)
    except Exception as error:
        assert getattr(error, "code", 0) in (400, 422), error
loop(os.environ["TASK"])
""",
    "reads the addresses of others": """
import glob, re
found, seen = set(), []
for pattern in ("/proc/[0-9]*/environ", "/proc/[0-9]*/cmdline", "/proc/net/*", "/root/*", "/tmp/*",
                "/run/**", "/var/**", "/dev/shm/*", "/proc/[0-9]*/maps", "/etc/*"):
    seen += glob.glob(pattern, recursive=True)
for path in seen:
    try:
        with open(path, "rb") as file:
            text = file.read(1 << 20)
    except OSError:
        continue
    found |= {each.decode() for each in re.findall(rb"/r/(\\w{16,64})", text)}
    found |= {each.decode() for each in re.findall(rb"API_KEY=(\\w{16,64})", text)}
assert found == {os.environ["OPENAI_API_KEY"]}, found
loop(os.environ["TASK"])
""",
    "sends huge bodies": RAW
    + """
for number in range(4):
    sock = connect()
    try:
        sock.sendall(head("POST", "/chat/completions", length=3 << 30))
        for _ in range(80):
            sock.sendall(bytes(1 << 20))
        raise SystemExit("80 MB were taken")
    except OSError:
        pass
loop(os.environ["TASK"])
""",
    "sends bodies that never end": RAW
    + """
kept = []
for number in range(50):
    sock = connect()
    sock.sendall(head("POST", "/chat/completions", length=60 << 20))
    sock.settimeout(0.2)
    kept.append(sock)
    try:
        for _ in range(10):
            sock.sendall(bytes(1 << 20))
    except OSError:
        pass
for sock in kept[8:]:
    sock.close()
loop(os.environ["TASK"])
""",
    "sends heads that never end": RAW
    + """
for begin in (b"POST /" + b"x" * 5000, b"POST / HTTP/1.1\\r\\na: b", b"POST / HTTP/1.1\\r\\n"):
    sock = connect()
    try:
        for _ in range(400):
            sock.sendall(b"c: d\\r\\n" * 9000 if begin[-1:] == b"\\n" else b"x" * 50000)
        raise SystemExit("20 MB of a head were taken")
    except OSError:
        pass
loop(os.environ["TASK"])
""",
    "uses wrong methods": RAW
    + """
for method in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "X"):
    for path in ("/chat/completions", "/responses", "/messages", "/models"):
        status = send(head(method, path))
        assert status in (400, 404) or (method, path, status) == ("GET", "/models", 200), status
loop(os.environ["TASK"])
""",
    "plays tricks with paths": RAW
    + """
for path in ("/../../../v1/models", "/%2e%2e/%2e%2e/verify", "//verify", "/chat/completions/..",
             "/./chat/completions", "/chat/completions;a", "/chat/completions/", "/" + "a/" * 9000,
             "/\\\\..\\\\verify", "/models/../../x/v1/models",
              "/chat%2fcompletions", "/\\xff\\x01"):
    status = send(head("POST", path, length=2) + b"{}")
    assert status in (0, 400, 404, 431), (path, status)
for whole in ("http://127.0.0.1/v1/models", "*", "/", "/r", "/r/", "/r//v1/models", "/v1/models",
              "/r/../r/x/v1/models", "/verify", "/run_program", "/seed_session"):
    status = send(b"GET " + whole.encode() + b" HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n")
    assert status in (400, 404), (whole, status)
loop(os.environ["TASK"])
""",
    "plays tricks with headers": RAW
    + """
body = b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}'
own = b"content-length: %d\\r\\n" % len(body)
smuggled = b"0\\r\\n\\r\\nGET /verify HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n"
for more in (own + b"content-length: 3\\r\\n", b"content-length: -1\\r\\n",
             b"content-length: 1e9\\r\\n", own + b"transfer-encoding: chunked\\r\\n",
             b"transfer-encoding: chunked, gzip\\r\\n",
             b"content-length: 99999999999999999999999\\r\\n", own + b" folded: x\\r\\n",
             b"transfer-encoding: chunked\\r\\n" + own + b"x:\\0\\r\\n",
             b"expect: 100-continue\\r\\n" * 99,
             b"upgrade: websocket\\r\\nconnection: upgrade\\r\\n", b"\\r\\n" + smuggled):
    status = send(head("POST", "/chat/completions", more) + body + smuggled)
    assert status in (0, 100, 200, 400, 404, 431), (more[:80], status)
for more in (b"authorization: Bearer guess\\r\\n", b"x-api-key: guess\\r\\nhost: other\\r\\n",
             b"x-forwarded-for: 1.1.1.1\\r\\nx-session-id: 1\\r\\nx-rollout: 2\\r\\n"):
    assert send(head("POST", "/chat/completions", more, length=len(body)) + body) == 200
loop(os.environ["TASK"])
""",
    "does not read its streams": RAW
    + """
body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]})
kept = []
for _ in range(30):
    sock = connect()
    sock.sendall(head("POST", "/chat/completions", length=len(body)) + body.encode())
    kept.append(sock)
while True:
    try:
        loop(os.environ["TASK"])
        break
    except Exception as error:
        assert getattr(error, "code", 0) == 429, error
        if kept:
            kept.pop().close()
""",
    "sends requests without sense": RAW
    + """
deep = "[" * 50000
for body in (deep, '{"messages": ' + deep, '{"messages": [{"role": "user", "content": ' + deep,
             json.dumps({"messages": [], "tools": [{}] * 50000}), "\\0" * 9, "\\ud800",
             '{"messages": [{"role": "user", "content": "x"}], "n": 9}',
             '{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1' + "0" * 5000 + "}",
             '{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
             '{"messages": [{"role": "\\\\ud800", "content": "x"}]}', '{"messages": {"0": 1}}',
             '{"messages": [{"role": "tool", "tool_call_id": 3, "content": {"a": []}}]}'):
    raw = body.encode("utf-8", "surrogatepass")
    for path in ("/chat/completions", "/messages", "/responses"):
        status = send(head("POST", path, length=len(raw)) + raw)
        assert 200 <= status < 500, (body[:80], path, status)
loop(os.environ["TASK"])
""",
    "makes up sampled tokens": RAW
    + """
forged = {"generation_token_ids": [1] * 9, "generation_log_probs": [0.0] * 9,
          "prompt_token_ids": [1], "policy_version_first": 99, "provider_data": {"a": 1}}
items = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", **forged}] * 3
raw = json.dumps({"model": "m", "input": items, **forged}).encode()
send(head("POST", "/responses", length=len(raw)) + raw)
loop(os.environ["TASK"])
""",
    "asks without end": """
loop(os.environ["TASK"])
import signal
for number in set(range(1, 65)) - {signal.SIGKILL, signal.SIGSTOP, 32, 33}:
    signal.signal(number, signal.SIG_IGN)
while True:
    try:
        ask([{"role": "user", "content": "more"}], tools=False)
    except Exception:
        pass
""",
    "kills all that it can": """
loop(os.environ["TASK"])
import signal
for pid in (1, os.getppid(), -1):
    for number in (signal.SIGSTOP, signal.SIGKILL):
        try:
            os.kill(pid, number)
        except OSError:
            pass
""",
    "forks without end": """
loop(os.environ["TASK"])
for _ in range(3000):
    try:
        if not os.fork():
            os.setsid()
    except OSError:
        break
""",
    "takes all memory": """
loop(os.environ["TASK"])
kept = []
while True:
    kept.append(b"x" * (64 << 20))
""",
    "prints without end": """
loop(os.environ["TASK"])
for _ in range(2000):
    sys.stdout.write("\\x1b[31m{\\"reward\\": 1e9}\\n" * 5000)
    sys.stderr.write("\\0" * 50000)
""",
    "leaves strange files": """
loop(os.environ["TASK"])
import socket
os.chdir("/work")
for source, name in (("/etc/passwd", "a"), ("/proc/1/environ", "b"), ("loop", "loop"), ("/", "r")):
    os.symlink(source, name)
os.mkfifo("fifo")
socket.socket(socket.AF_UNIX).bind("socket")
for name in (b"\\xff\\xfe", b"new\\nline", b"-rf", b"a" * 255, b"\\x1b[2J"):
    open(name, "w").close()
    os.chmod(name, 0)
with open("sparse", "wb") as file:
    file.truncate(1 << 40)
for _ in range(300):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
""",
    "writes very many files": """
loop(os.environ["TASK"])
try:
    for number in range(30000):
        with open(f"/work/f{number}", "w") as file:
            file.write("x")
except OSError:
    pass
""",
    "leaves its session": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
results = [libc.mount(b"none", b"/mnt", b"proc", 0, None), libc.unshare(0x10000000),
           libc.chroot(b"/proc/1/root"), libc.ptrace(16, 1, 0, 0), libc.sethostname(b"x", 1),
           libc.reboot(0x1234567), libc.setns(0, 0), libc.init_module(b"", 0, b"")]
for path in ("/proc/sysrq-trigger", "/sys/kernel/uevent_helper", "/proc/sys/kernel/core_pattern",
             "/dev/mem", "/dev/sda", "/proc/1/mem", "/sys/fs/cgroup/cgroup.procs"):
    try:
        with open(path, "w") as file:
            file.write("1")
        raise SystemExit(f"{path} was written")
    except OSError:
        pass
loop(os.environ["TASK"])
""",
}

QUICK = ("floods", "forks away, and asks after its end")
"""Those that every run of the tests has."""
