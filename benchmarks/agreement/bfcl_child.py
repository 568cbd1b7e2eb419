"""Runs in an environment of bfcl-eval: what its evaluator says of answers.

Reads `{mode: [{id, category, result}, …]}` and writes `{mode: [[verdict, asked], …]}`: a bool or
the error, and the tools or the prompt of the row. Clients of hosted models that are not installed
are replaced: only the functions that write prompts and judge are called.
"""

import json
import os
import sys
from importlib import import_module

from replaced_packages import replace

MISSING = ("qwen_agent", "sentence_transformers", "faiss")

MODELS = {"fc": "gpt-4o-2024-11-20-FC", "prompt": "gpt-4o-2024-11-20"}


def main(source, target):
    replace(*MISSING)
    os.environ["OPENAI_API_KEY"] = "none"
    runner = import_module("bfcl_eval.eval_checker.eval_runner")
    with open(source) as stream:
        given = json.load(stream)
    found = {mode: Judge(runner, mode).judge_all(answers) for mode, answers in given.items()}
    with open(target, "w") as stream:
        json.dump(found, stream)


class Judge:
    def __init__(self, runner, mode):
        self.runner, self.model = runner, MODELS[mode]
        self.handler = runner.get_handler(self.model)
        self.entries, self.asked, self.is_fc = {}, {}, mode == "fc"

    def judge_all(self, answers):
        for category in {each["category"] for each in answers}:
            prompts = self.runner.load_dataset_entry(
                category, include_prereq=False, include_language_specific_hint=False
            )
            has_truth = not self.runner.is_relevance_or_irrelevance(category)
            truths = self.runner.load_ground_truth_entry(category) if has_truth else prompts
            for prompt, truth in zip(prompts, truths, strict=True):
                self.entries[prompt["id"]] = prompt, truth.get("ground_truth")
            for entry in self.runner.load_dataset_entry(category, include_prereq=False):
                self.asked[entry["id"]] = self.ask(entry)
        # the programs of a task are kept by its name, so each answer has another name
        return [
            [self.judge(answer, f"{self.model}-{n}"), self.asked[answer["id"]]]
            for n, answer in enumerate(answers)
        ]

    def ask(self, entry):
        """The tools of a row, or its first messages."""
        utils = import_module("bfcl_eval.model_handler.utils")
        if not self.is_fc:
            messages, functions = entry["question"][0], entry["function"]
            return utils.system_prompt_pre_processing_chat_model(messages, functions, entry["id"])
        tools = utils.convert_to_tool(
            entry["function"], utils.GORILLA_TO_OPENAPI, utils.ModelStyle.OPENAI_RESPONSES
        )
        return tools

    def judge(self, answer, name):
        prompt, truth = self.entries[answer["id"]]
        category, result, runner = answer["category"], answer["result"], self.runner
        try:
            if runner.is_multi_turn(category):
                found = runner._evaluate_single_multi_turn_entry(
                    self.handler, answer["id"], result, truth, dict(prompt), name, category
                )
            elif runner.is_relevance_or_irrelevance(category):
                found = runner._evaluate_single_relevance_entry(
                    self.handler, answer["id"], result, prompt, self.model, category
                )
            else:
                language = next(
                    (each for each in ("JAVASCRIPT", "JAVA") if each.lower() in category), "PYTHON"
                )
                found = runner._evaluate_single_ast_entry(
                    self.handler,
                    answer["id"],
                    result,
                    truth,
                    prompt,
                    self.model,
                    category,
                    language=runner.Language[language],
                    return_format=runner.ReturnFormat[language],
                )
        except Exception as error:  # it ends the whole evaluation there
            return f"{type(error).__name__}: {error}"
        return found["valid"]


main(*sys.argv[1:])
