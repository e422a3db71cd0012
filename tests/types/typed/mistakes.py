"""What type checkers must find in a user's program: an error in every line that says so."""

from quire import LLM, SamplingParams


def wrong(llm: LLM) -> None:
    SamplingParams(temperature="hot")  # error
    SamplingParams(temprature=1.0)  # error
    llm.generate(5)  # error
    llm.generate("Once", use_tqdm="no")  # error
    print(llm.generate("Once")[0].txt)  # error
    print(len(llm.generate("Once")[0].usage))  # error
    llm.no_such_method()  # error
