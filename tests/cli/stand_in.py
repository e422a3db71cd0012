"""`quire` with a stand-in for the engine, so that the command line is tested without a model.

It repeats the prompt word by word, and logs its arguments to the file named in QUIRE_STAND_IN. A prompt with the word
"forever" is answered until the stream is closed; one with "pause" stops in the middle until a file "go-on" exists.
"""

from __future__ import annotations

import json
import os
import sys
import time
import types
from dataclasses import asdict
from pathlib import Path

from quire.text.preset import read_preset
from quire.text.sampling_defaults import read_sampling_defaults
from quire.types.answer import Delta, Usage
from quire.types.errors import QuireError
from quire.types.request import FinishReason
from quire.types.step import DraftCount

DRAFTS = (DraftCount("suffix", 6, 4),)
USAGE = Usage(prompt=7, cached=3, output=11, first_token_seconds=0.5, seconds=2.5, drafts=DRAFTS)


class LLM:
    def __init__(self, model, *, device="cpu", in_process=True, **settings):
        log("open", model=str(model), device=device, settings=settings)
        folder = Path(model).parent
        self.sampling_defaults = read_sampling_defaults(folder, {}, read_preset(folder)).values
        sources = {"default": "{% if enable_thinking %}{% endif %}" if "thinking" in str(model) else "{{ messages }}"}
        self.template = types.SimpleNamespace(is_default="no-template" in str(model), sources=sources)

    def stream(self, prompt, sampling=None, *, constraint=None, chat_template_kwargs=None):
        fields = asdict(constraint) if constraint is not None else None
        log("stream", prompt=prompt, sampling=asdict(sampling), constraint=fields, variables=chat_template_kwargs)
        text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        if "fail" in text:
            raise QuireError("The engine failed: try again.")
        try:
            yield Delta("You said: ")
            while "forever" in text:
                yield Delta("and on ")
                time.sleep(0.01)
            while "pause" in text and not Path(os.environ["QUIRE_STAND_IN"]).with_name("go-on").exists():
                time.sleep(0.01)
            for word in text.split(" "):
                yield Delta(word + " ")
            yield Delta("", finish=FinishReason.STOP, usage=USAGE)
        finally:
            log("closed stream")

    def close(self):
        log("closed")


def log(what, **facts):
    with Path(os.environ["QUIRE_STAND_IN"]).open("a") as file:
        file.write(json.dumps({"what": what, **facts}) + "\n")


if __name__ == "__main__":
    module = types.ModuleType("quire.engine.llm")
    module.LLM = LLM
    sys.modules["quire.engine.llm"] = module
    from quire.cli import main

    as_module = sys.argv[1:2] == ["-m"]
    if as_module:
        del sys.argv[1]
    code = main.main_of_module() if as_module else main.main()
    print(*(name for name in ("torch", "transformers", "numpy") if name in sys.modules), file=sys.stderr)
    sys.exit(code)
