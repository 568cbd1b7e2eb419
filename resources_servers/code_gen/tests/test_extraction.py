"""Which block of an answer is the program."""

import sys

import pytest

from rollout_kit.serving.registry import load

CodeGen = load("resources_servers", "code_gen")
extract_code = sys.modules[CodeGen.__module__.replace(".app", ".extraction")].extract_code

PROGRAM = "```python\nprint(1)\n```\n"
PATCH = "```python\ndef f(n):\n    return n\n```\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (PROGRAM, "print(1)"),
        ("Here it is: ```python\nprint(1)\n```", "print(1)"),
        ("```\nprint(1)\n```", "print(1)"),
        ("``` Python3\nprint(1)\n``` Done", "print(1)"),
        ('```{.python title="a.py"}\nprint(1)\n```', "print(1)"),
        ("````python\nprint(1)\n````", "print(1)"),
        ("```python\r\nprint(1)\r\n```\r\n", "print(1)\r"),
        # behind the program
        (PROGRAM + "```bash\npython a.py\n```", "print(1)"),
        (PROGRAM + "```sh\necho print(1)\n```", "print(1)"),
        (PROGRAM + "Output:\n```\n1\n```", "print(1)"),
        (PROGRAM + "```text\n1\n```\n```json\n[1]\n```", "print(1)"),
        (PROGRAM + "```pycon\n>>> print(2)\n2\n```", "print(1)"),
        (PROGRAM + "```\n$ python a.py\nthe printer prints 1\n```", "print(1)"),
        (PROGRAM + "Run `python a.py` or ```python a.py```.", "print(1)"),
        (PROGRAM + "```", "print(1)"),
        ("```\nprint(1)\n```\n```\n1\n```", "print(1)"),
        ("```\nimport sys\nw = sys.stdout.write\nw('1')\n```\n```bash\nls\n```",
         "import sys\nw = sys.stdout.write\nw('1')"),
        # the last of several programs
        (PROGRAM + "```python\nprint(2)\n```", "print(2)"),
        (PROGRAM + "No:\n```\nprint(2)\n```", "print(2)"),
        ("```cpp\nprintf(1);\n```\n" + PROGRAM, "print(1)"),
        (PROGRAM + "No:\n```python\nprint(2)", ""),  # cut off
        ("```python\nprint(0)\n" + PROGRAM, "print(1)"),  # without an end
        ("I never use ``` to start.\n" + PROGRAM, "print(1)"),
        ("```text\nA list\n```\n```\nprint(1)\n```", "print(1)"),
        # indented
        ("1. Do:\n   ```python\n   if 1:\n       print(1)\n   ```", "if 1:\n    print(1)"),
        ("- ```python\n  print(1)\n\n  print(2)\n  ```", "print(1)\n\nprint(2)"),
        ("\t```python\n\tprint(1)\n\t```", "print(1)"),
        ("  ```python\nprint(1)\n  ```", "print(1)"),
        ("```python\n\n  print(1)\n```", "\nprint(1)"),
        # byte order marks
        ("```python\n\ufeffprint(1)\n```", "print(1)"),
        ("\ufeff```python\nprint(1)\n```", "print(1)"),
        ("  ```python\n  \ufeffprint(1)\n  print(2)\n  ```", "print(1)\nprint(2)"),
        # fences in the code
        ("```python\nprint('```')\n```", "print('```')"),
        ("```python\nprint(1)```", "print(1)"),
        # nothing
        ("print(1)", ""),
        ("```python\nprint(1)", ""),
        ("```python\n```", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_the_last_program_counts(text: str, code: str) -> None:
    assert extract_code(text) == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (PATCH + PROGRAM, "def f(n):\n    return n"),
        (PATCH + "```python\ndef f(n): return 2\n```\n" + PROGRAM, "def f(n): return 2"),
        (PATCH + "```\n1\n```", "def f(n):\n    return n"),
        (PROGRAM, "print(1)"),
        ("```python\ndef ff(n): return 2\n```\n" + PROGRAM, "print(1)"),
    ],
)
def test_a_block_that_defines_the_function_counts(text: str, code: str) -> None:
    assert extract_code(text, "f") == code
