"""Runs in a session: pytest for the files that are named, and a report of each test.

Below coverage, each line is recorded with the test files that run it."""

import json
import sys

import pytest


class Reporter:
    def __init__(self):
        self.passed, self.failed = {}, {}
        coverage = sys.modules.get("coverage")
        self.coverage = coverage and coverage.Coverage.current()

    def pytest_runtest_logstart(self, nodeid, location):
        if self.coverage:
            self.coverage.switch_context(nodeid.partition("::")[0])

    def pytest_runtest_logreport(self, report):
        if report.outcome == "passed" and report.when == "call":
            self.passed[report.nodeid] = True
        elif report.outcome == "failed":
            lines = str(report.longrepr).splitlines()
            lines = [each[1:] for each in lines if each.startswith("E  ")] or lines
            self.failed[report.nodeid] = "\n".join(each.strip() for each in lines[:4])[:600]

    def pytest_collectreport(self, report):
        if report.failed:
            self.failed[report.nodeid or "collection"] = str(report.longrepr)[-600:]


def main(target, *files):
    sys.path.insert(0, "/app")
    reporter = Reporter()
    plain = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist"]
    options = ["-o", "addopts=", "--rootdir=/app", "--tb=short", "--no-header"]
    # other files run even if one cannot be imported, or a setting names a plugin that is missing
    bears = ["--continue-on-collection-errors", "-W", "ignore::pytest.PytestWarning"]
    pytest.main([*plain, *options, *bears, *files], plugins=[reporter])
    passed = [each for each in reporter.passed if each not in reporter.failed]
    with open(target, "w") as file:
        json.dump({"passed": passed, "failed": reporter.failed}, file)


main(*sys.argv[1:])
