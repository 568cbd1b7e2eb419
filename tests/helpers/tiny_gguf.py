"""Write the tiny model in llama.cpp's format, with the converter of a folder of llama.cpp.

llama.cpp knows only the tokenizers of known models, so the file names another one.
"""

import runpy
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    source, checkpoint, output = sys.argv[1:]
    sys.path.insert(0, source)
    from conversion import base  # pyright: ignore[reportMissingImports]

    def name_tokenizer(self: Any, tokenizer: Any) -> str:
        return "qwen2"

    base.TextModel.get_vocab_base_pre = name_tokenizer
    sys.argv = ["convert", checkpoint, "--outfile", output, "--outtype", "f32"]
    runpy.run_path(str(Path(source, "convert_hf_to_gguf.py")), run_name="__main__")
