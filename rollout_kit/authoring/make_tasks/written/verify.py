"""Runs in the session of a verdict: the reward is 1 if every test passes that passed before the
fault was planted."""

import json
import os
import shutil
import subprocess
import sys

SETTINGS = ("conftest.py", "pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", ".coveragerc")


def main():
    for place, folders, names in os.walk("/app"):
        folders[:] = [each for each in folders if not os.path.islink(os.path.join(place, each))]
        for name in names:
            if name in ("conftest.py", "pytest.ini", "sitecustomize.py", "pytest.py"):
                os.unlink(os.path.join(place, name))
    for source in ("/tests/settings", "/tests/suite"):
        if os.path.isdir(source):
            shutil.copytree(source, "/app", dirs_exist_ok=True)
    with open("/tests/expected.json") as file:
        expected = json.load(file)
    report = "/tests/report.json"
    command = [sys.executable, "-P", "/tests/run_tests.py", report, *expected["files"]]
    subprocess.run(command, cwd="/app", check=False, timeout=expected["timeout_s"])
    with open(report) as file:
        passed = set(json.load(file)["passed"])
    missing = [each for each in expected["tests"] if each not in passed]
    sys.stdout.write(f"{len(missing)} of {len(expected['tests'])} tests fail\n")
    with open("/logs/verifier/reward.txt", "w") as file:
        file.write("0" if missing else "1")


main()
