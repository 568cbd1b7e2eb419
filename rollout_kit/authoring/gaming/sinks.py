"""Calls that run a text, or open the file that it names, by the name that the code imports."""

import ast

EVALUATES = frozenset(
    {
        *("eval", "exec", "compile", "__import__"),
        *(f"builtins.{name}" for name in ("eval", "exec", "compile", "__import__")),
        *(
            "importlib.import_module",
            "runpy.run_path",
            "runpy.run_module",
            "code.InteractiveConsole",
        ),
        *("sympy.sympify", "sympy.S", "sympy.parse_expr", "sympy.simplify", "sympy.Poly"),
        *("sympy.parsing.sympy_parser.parse_expr", "sympy.core.sympify.sympify", "sympy.lambdify"),
        *("sympy.solve", "sympy.nsimplify", "sympy.N", "sympy.expand", "sympy.factor"),
        *("sympy.Matrix", "sympy.Eq", "sympy.parsing.mathematica.parse_mathematica"),
        *(
            "sympy.parsing.latex.parse_latex",
            "numexpr.evaluate",
            "pandas.eval",
            "asteval.Interpreter",
        ),
        *("timeit.timeit", "cProfile.run", "doctest.testmod"),
    }
)
"""They evaluate or import what the text says."""

LOADS = frozenset(
    {
        *(
            f"{module}.{name}"
            for module in ("pickle", "_pickle", "dill", "cloudpickle")
            for name in ("load", "loads", "Unpickler")
        ),
        *("marshal.load", "marshal.loads", "shelve.open", "joblib.load", "torch.load"),
        *("pandas.read_pickle", "jsonpickle.decode", "jsonpickle.loads"),
        *("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.unsafe_load_all"),
        *("yaml.full_load", "yaml.full_load_all", "numpy.load"),
    }
)
"""They make objects that the data names, and call what it says."""

STARTS = frozenset(
    {
        *(
            f"subprocess.{name}"
            for name in (
                "run",
                "Popen",
                "call",
                "check_call",
                "check_output",
                "getoutput",
                "getstatusoutput",
            )
        ),
        *("os.system", "os.popen", "os.execv", "os.execve", "os.execvp", "os.execl", "os.execlp"),
        *("os.spawnv", "os.spawnl", "os.spawnlp", "os.spawnvp", "os.posix_spawn", "pty.spawn"),
        *("asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell"),
        *("commands.getoutput", "pexpect.spawn", "sh.Command"),
    }
)
"""They start a program."""

TEMPLATES = frozenset(
    {
        "jinja2.Template",
        "mako.template.Template",
        "django.template.Template",
        "tornado.template.Template",
    }
)
TEMPLATE_METHODS = frozenset({"from_string"})

PATTERNS = frozenset(
    f"{module}.{name}"
    for module in ("re", "regex")
    for name in (
        "search",
        "match",
        "fullmatch",
        "findall",
        "finditer",
        "sub",
        "subn",
        "split",
        "compile",
    )
)
"""Their first argument is an expression, which may take forever."""

OPENS = frozenset(
    {
        *("open", "io.open", "os.open", "codecs.open", "builtins.open", "aiofiles.open"),
        *("os.listdir", "os.scandir", "os.walk", "os.remove", "os.unlink", "os.rename"),
        *("shutil.rmtree", "shutil.copy", "shutil.copyfile", "shutil.copytree", "shutil.move"),
        *("glob.glob", "glob.iglob", "linecache.getline", "linecache.getlines", "sqlite3.connect"),
        *("numpy.loadtxt", "numpy.genfromtxt", "numpy.fromfile", "zipfile.ZipFile", "tarfile.open"),
        *("pandas.read_csv", "pandas.read_json", "pandas.read_parquet", "PIL.Image.open"),
    }
)
"""They open, list or change what a path names."""

PATHS = frozenset({"pathlib.Path", "pathlib.PurePath", "pathlib.PosixPath", "os.path.join"})

PATH_METHODS = frozenset(
    {
        *("open", "read_text", "read_bytes", "write_text", "write_bytes", "iterdir", "glob"),
        *("rglob", "unlink", "rename", "replace", "rmdir", "touch", "symlink_to", "hardlink_to"),
    }
)
"""Methods of a path that do the same."""

HOLDS_INSIDE = frozenset({"is_relative_to", "relative_to", "commonpath", "secure_filename"})
"""A function that calls one of these keeps paths in a folder."""

LAST_PARTS = frozenset({"name", "stem", "suffix"})
"""Attributes of a path without its folders."""

OPENS_FILE = "opens the file that it names"

QUERIES = frozenset({"execute", "executescript", "executemany"})
"""Methods of a connection to a database: their first argument is a statement."""

CONTAINERS = frozenset({"bwrap", "docker", "podman", "firejail", "nsjail"})

HARMLESS = frozenset(
    {
        *("len", "int", "float", "bool", "isinstance", "hash", "id", "type", "ord", "issubclass"),
        *("re.escape", "regex.escape", "shlex.quote", "math.isclose", "math.isfinite", "hasattr"),
        *("all", "any", "round", "abs", "callable", "fractions.Fraction", "decimal.Decimal"),
    }
)
"""What they return holds no text of their arguments."""

SAFE_LOADERS = frozenset({"SafeLoader", "CSafeLoader", "BaseLoader", "CBaseLoader"})


def describe_sink(name: str, call: ast.Call, *, is_first: bool, is_worker: bool) -> str:
    """What a call does with a text that reaches it, or nothing. `is_first`: the text is in its
    first argument. `is_worker`: the call is made in a process that can be killed."""
    keywords = {each.arg: each.value for each in call.keywords}
    if name in EVALUATES:
        return "evaluates it"
    if name in LOADS:
        if name.startswith("yaml.load") and _is_safe_loader(call, keywords):
            return ""
        if name == "numpy.load" and "allow_pickle" not in keywords:
            return ""
        return "loads objects that it names"
    if name in STARTS and not _is_contained(call):
        return "starts a program with it"
    if name in TEMPLATES or (name.rpartition(".")[2] in TEMPLATE_METHODS and is_first):
        return "renders it as a template"
    if name in PATTERNS and is_first and not is_worker:
        return "matches it as an expression, in the server's process"
    if name.rpartition(".")[2] in QUERIES and "." in name and is_first:
        return "executes it as a statement of a database"
    return OPENS_FILE if name in OPENS and is_first else ""


def _is_safe_loader(call: ast.Call, keywords: dict[str | None, ast.expr]) -> bool:
    loader = keywords.get("Loader") or (call.args[1] if len(call.args) > 1 else None)
    name = loader.attr if isinstance(loader, ast.Attribute) else getattr(loader, "id", "")
    return name in SAFE_LOADERS


def _is_contained(call: ast.Call) -> bool:
    """Whether the program is started in a container."""
    first = call.args[0] if call.args else None
    if isinstance(first, ast.List | ast.Tuple) and first.elts:
        first = first.elts[0]
    return isinstance(first, ast.Constant) and first.value in CONTAINERS
