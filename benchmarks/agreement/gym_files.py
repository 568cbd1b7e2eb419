"""Whether every YAML of an installed NeMo Gym is read: `python -m benchmarks.agreement.gym_files
<its interpreter>`. The exit status is 1 if one is refused that is not known to be broken there.
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

BROKEN = ("no such file",)
"""Why a file of theirs cannot be used: it includes one that is not there."""


def main() -> int:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    command = [
        str(Path(sys.executable).with_name("ng_list")),
        f"+nemo_gym=installed:{sys.argv[1]}",
        "+check=true",
        "+json=true",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr.strip())
    files = json.loads(done.stdout)
    refused = [
        each
        for each in files
        if each["status"] == "refused" and not any(why in each["reason"] for why in BROKEN)
    ]
    for each in refused:
        print(f"{each['path']}: {each['reason']}")
    count = Counter(each["status"] for each in files)
    told = ", ".join(f"{number} {status}" for status, number in sorted(count.items()))
    print(f"{len(files)} files: {told}; {len(refused)} refused that should be read")
    return bool(refused) or not files


if __name__ == "__main__":
    sys.exit(main())
