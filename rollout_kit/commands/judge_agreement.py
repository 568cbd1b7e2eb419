"""ng_judge_agreement: how far judges agree with each other, and with people's labels."""

from ..analysis.judge_agreement import compare_judges, format_agreement
from ..config.keys import JudgeAgreementConfig
from . import entry


def main(words: list[str]) -> int:
    command = entry.parse_files(words, JudgeAgreementConfig)
    entry.show_of_files(command, compare_judges(command), format_agreement)
    return 0
