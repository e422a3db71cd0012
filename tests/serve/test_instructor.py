"""`instructor` gets an object of a Pydantic model from our server, in every mode that sends the schema to the server.

It has an environment of its own: it wants an older `openai` than the other tests. Its modes JSON and MD_JSON tell the
schema to the model alone, which must then be able to follow it by itself.
"""

from __future__ import annotations

import json
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.serve.http.app import all_dialects
from tests.serve.running import Running, running

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

MODES = ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS")
SCRIPT = """
import json, sys
from enum import Enum
from typing import Annotated, Optional
import instructor, openai
from pydantic import BaseModel, Field

class Color(str, Enum):
    RED = "red"
    BLUE = "blue"

class Address(BaseModel):
    city: Annotated[str, Field(max_length=12)]

class Person(BaseModel):
    name: Annotated[str, Field(max_length=12)]
    age: Annotated[int, Field(ge=0, le=120)]
    color: Optional[Color] = None
    homes: Annotated[list[Address], Field(max_length=2)] = []

url, mode = sys.argv[1:]
client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
wrapped = instructor.from_openai(client, mode=instructor.Mode[mode])
limit = "max_output_tokens" if mode.startswith("RESPONSES") else "max_tokens"
question = [{"role": "user", "content": "Jane is 42 and lives in Paris. Who is she?"}]
answer = wrapped.chat.completions.create(
    model="toy", messages=question, response_model=Person, max_retries=0, temperature=0, **{limit: 200}
)
assert isinstance(answer, Person), type(answer)
print(answer.model_dump_json())
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("instructor") / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    made = subprocess.run([python, "-m", "pip", "install", "--quiet", "instructor>=1.10,<2"], check=False)
    if made.returncode:
        pytest.skip("instructor cannot be installed here")
    return python


@pytest.fixture(scope="module")
def server(model_file: Path) -> Iterator[Running]:
    with running(model_file, all_dialects()) as made:
        yield made


@pytest.mark.parametrize("mode", MODES)
def test_the_answer_is_an_object_of_the_model(mode: str, python: Path, server: Running) -> None:
    command = [python, "-c", SCRIPT, server.url, mode]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert set(json.loads(ran.stdout)) == {"name", "age", "color", "homes"}
