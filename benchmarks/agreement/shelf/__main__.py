"""`python -m benchmarks.agreement.shelf .peers/bin/python [BENCHMARK …]`."""

import sys

from .comparison import compare

sys.exit(int(compare(sys.argv[1], sys.argv[2:]) > 0))
