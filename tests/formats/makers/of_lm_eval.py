"""Makes real samples of lm-eval with its dummy model: `python of_lm_eval.py FOLDER NUM_SAMPLES`.

It runs in lm-eval's own environment. The tasks are its own kinds: text that is generated, and a
question with choices.
"""

import json
import sys
from pathlib import Path

from lm_eval import simple_evaluate
from lm_eval.loggers import EvaluationTracker

WRITTEN = """
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: generate_until
doc_to_text: "Q: {{{{question}}}}\\nA:"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["Q:"], do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""

CHOSEN = """
task: choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: 0
doc_to_choice: ["True", "False"]
metric_list: [{{metric: acc}}]
"""


def main(folder, number):
    folder.mkdir()
    rows = folder / "rows.json"
    lines = [
        {"question": f"{each} + 1?", "answer": "lol"[: 3 - each % 2]} for each in range(number)
    ]
    rows.write_text("\n".join(map(json.dumps, lines)))
    tasks = []
    for name, text in (("sums", WRITTEN), ("choices", CHOSEN)):
        (folder / f"{name}.yaml").write_text(text.format(rows=rows))
        tasks.append(str(folder / f"{name}.yaml"))
    found = simple_evaluate(model="dummy", tasks=tasks, log_samples=True, bootstrap_iters=0)
    tracker = EvaluationTracker(output_path=str(folder))
    samples = found.pop("samples")
    tracker.save_results_aggregated(results=found, samples=samples)
    for name, each in samples.items():
        tracker.save_results_samples(task_name=name, samples=each)


main(Path(sys.argv[1]), int(sys.argv[2]))
