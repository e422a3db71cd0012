"""The templates that people use, in the shapes that Ollama's have, against texts that were checked by hand."""

import pytest

from quire.text.errors import BrokenTemplate, RejectedMessages
from quire.text.go_chat import GoChatTemplate
from quire.text.template import CHATML, ChatTemplate

pytestmark = pytest.mark.pure

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "Bye"},
]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Of a <city>",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TOOL_JSON = (
    '{"type":"function","function":{"name":"weather","description":"Of a \\u003ccity\\u003e",'
    '"parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}'
)
CALLED = [
    {"role": "user", "content": "Weather in Oslo?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "function": {"name": "weather", "arguments": {"city": "Oslo", "days": 1}}}],
    },
    {"role": "tool", "content": "Rain", "tool_call_id": "c1", "name": "weather"},
]

CHATML_TURNS = """{{ if .System }}<|im_start|>system
{{ .System }}<|im_end|>
{{ end }}{{ if .Prompt }}<|im_start|>user
{{ .Prompt }}<|im_end|>
{{ end }}<|im_start|>assistant
{{ .Response }}<|im_end|>
"""
CHATML_MESSAGES = """{{- range .Messages }}<|im_start|>{{ .Role }}
{{ .Content }}<|im_end|>
{{ end }}<|im_start|>assistant
"""
CHATML_WRITTEN = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
    "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
)
LLAMA3_TURNS = """{{ if .System }}<|start_header_id|>system<|end_header_id|>

{{ .System }}<|eot_id|>{{ end }}{{ if .Prompt }}<|start_header_id|>user<|end_header_id|>

{{ .Prompt }}<|eot_id|>{{ end }}<|start_header_id|>assistant<|end_header_id|>

{{ .Response }}<|eot_id|>"""
LLAMA3_WRITTEN = (
    "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi"
    "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|><|start_header_id|>user"
    "<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
)
GEMMA_TURNS = """<start_of_turn>user
{{ if .System }}{{ .System }} {{ end }}{{ .Prompt }}<end_of_turn>
<start_of_turn>model
{{ .Response }}<end_of_turn>
"""
GEMMA_MESSAGES = """{{- $system := "" }}
{{- range .Messages }}
{{- if eq .Role "system" }}
{{- $system = .Content }}
{{- else if eq .Role "user" }}<start_of_turn>user
{{ if $system }}{{ $system }} {{ $system = "" }}{{ end }}{{ .Content }}<end_of_turn>
{{ else }}<start_of_turn>model
{{ .Content }}<end_of_turn>
{{ end }}
{{- end }}<start_of_turn>model
"""
GEMMA_WRITTEN = (
    "<start_of_turn>user\nBe brief. Hi<end_of_turn>\n<start_of_turn>model\nHello!<end_of_turn>\n"
    "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
)
ZEPHYR = (
    "{{ if .System }}<|system|>\n{{ .System }}</s>\n{{ end }}"
    "{{ if .Prompt }}<|user|>\n{{ .Prompt }}</s>\n{{ end }}<|assistant|>\n"
)
ZEPHYR_WRITTEN = "<|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\nHello!<|user|>\nBye</s>\n<|assistant|>\n"
PHI3 = """{{- if .System }}<|system|>
{{ .System }}<|end|>
{{ end }}
{{- if .Prompt }}<|user|>
{{ .Prompt }}<|end|>
{{ end }}<|assistant|>
{{ .Response }}<|end|>
"""
PHI3_WRITTEN = (
    "<|system|>\nBe brief.<|end|>\n"
    "<|user|>\nHi<|end|>\n<|assistant|>\nHello!<|end|>\n<|user|>\nBye<|end|>\n<|assistant|>\n"
)
ALPACA = """{{ if .System }}{{ .System }}

{{ end }}{{ if .Prompt }}### Instruction:
{{ .Prompt }}

{{ end }}### Response:
{{ .Response }}

"""
ALPACA_WRITTEN = (
    "Be brief.\n\n### Instruction:\nHi\n\n### Response:\nHello!\n\n### Instruction:\nBye\n\n### Response:\n"
)
MISTRAL_TURNS = "[INST] {{ if .System }}{{ .System }} {{ end }}{{ .Prompt }} [/INST]{{ .Response }}</s>"
MISTRAL_WRITTEN = "[INST] Be brief. Hi [/INST]Hello!</s>[INST] Bye [/INST]"


@pytest.mark.parametrize(
    "source, written",
    [
        (CHATML_TURNS, CHATML_WRITTEN),
        (CHATML_MESSAGES, CHATML_WRITTEN),
        (LLAMA3_TURNS, LLAMA3_WRITTEN),
        (GEMMA_TURNS, GEMMA_WRITTEN),
        (GEMMA_MESSAGES, GEMMA_WRITTEN),
        (ZEPHYR, ZEPHYR_WRITTEN),
        (PHI3, PHI3_WRITTEN),
        (ALPACA, ALPACA_WRITTEN),
        (MISTRAL_TURNS, MISTRAL_WRITTEN),
    ],
)
def test_a_conversation_is_written(source, written):
    assert GoChatTemplate(source).render(TALK) == written


@pytest.mark.parametrize("source", [CHATML_TURNS, CHATML_MESSAGES])
@pytest.mark.parametrize("talk", [TALK, TALK[1:], TALK[1:2], TALK[:2]])
def test_chatml_is_the_same_text_in_both_languages(source, talk):
    assert GoChatTemplate(source).render(talk) == ChatTemplate(CHATML).render(talk)


SMOLLM2 = (
    "{{ if not .System }}<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n{{ end }}" + CHATML_MESSAGES.removeprefix("{{-").replace(" range", "{{ range", 1)
)


@pytest.mark.parametrize("talk", [TALK, TALK[1:], TALK[1:2], TALK[:2]])
def test_the_bundled_models_own_template_is_the_same_text_in_both_languages(metadata, talk):
    assert GoChatTemplate(SMOLLM2).render(talk) == ChatTemplate.from_gguf(metadata).render(talk)


QWEN_TOOLS = """{{- if .Messages }}
{{- if or .System .Tools }}<|im_start|>system
{{- if .System }}
{{ .System }}
{{- end }}
{{- if .Tools }}

# Tools

<tools>
{{- range .Tools }}
{"type": "function", "function": {{ .Function }}}
{{- end }}
</tools>
{{- end }}<|im_end|>
{{ end }}
{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 -}}
{{- if eq .Role "user" }}<|im_start|>user
{{ .Content }}<|im_end|>
{{ else if eq .Role "assistant" }}<|im_start|>assistant
{{ if .Content }}{{ .Content }}
{{- else if .ToolCalls }}<tool_call>
{{ range .ToolCalls }}{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}
{{ end }}</tool_call>
{{- end }}{{ if not $last }}<|im_end|>
{{ end }}
{{- else if eq .Role "tool" }}<|im_start|>user
<tool_response>
{{ .Content }}
</tool_response><|im_end|>
{{ end }}
{{- if and (ne .Role "assistant") $last }}<|im_start|>assistant
{{ end }}
{{- end }}
{{- else }}
{{- if .Prompt }}{{ .Prompt }}{{ end }}{{ .Response }}
{{- end }}"""


def test_tools_their_calls_and_their_results_are_written():
    function = TOOL_JSON.removeprefix('{"type":"function","function":').removesuffix("}")
    assert GoChatTemplate(QWEN_TOOLS).render(CALLED, tools=[TOOL]) == (
        "<|im_start|>system\n\n# Tools\n\n<tools>\n"
        '{"type": "function", "function": ' + function + "}\n</tools><|im_end|>\n"
        "<|im_start|>user\nWeather in Oslo?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "weather", "arguments": {"city":"Oslo","days":1}}\n'
        "</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nRain\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert GoChatTemplate(QWEN_TOOLS).render(TALK) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!"
        "<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )


MISTRAL_TOOLS = """{{- range $index, $_ := .Messages }}
{{- if eq .Role "user" }}
{{- if and (le (len (slice $.Messages $index)) 2) $.Tools }}[AVAILABLE_TOOLS] {{ $.Tools }}[/AVAILABLE_TOOLS]
{{- end }}[INST] {{ if and (eq (len (slice $.Messages $index)) 1) $.System }}{{ $.System }}

{{ end }}{{ .Content }}[/INST]
{{- else if eq .Role "assistant" }}
{{- if .Content }} {{ .Content }}</s>
{{- else if .ToolCalls }}[TOOL_CALLS] [
{{- range .ToolCalls }}{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}
{{- end }}]</s>
{{- end }}
{{- else if eq .Role "tool" }}[TOOL_RESULTS] {"content": {{ .Content }}} [/TOOL_RESULTS]
{{- end }}
{{- end }}"""


def test_mistral_writes_tools_before_the_last_question():
    template = GoChatTemplate(MISTRAL_TOOLS)
    assert template.render(TALK, tools=[TOOL]) == (
        f"[INST] Hi[/INST] Hello!</s>[AVAILABLE_TOOLS] [{TOOL_JSON}][/AVAILABLE_TOOLS][INST] Be brief.\n\nBye[/INST]"
    )
    assert template.render(CALLED[:2], tools=[TOOL]).endswith(
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"city":"Oslo","days":1}}]</s>'
    )


LLAMA_TOOLS = """{{- if or .System .Tools }}<|start_header_id|>system<|end_header_id|>
{{- if .System }}

{{ .System }}
{{- end }}<|eot_id|>
{{- end }}
{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 }}
{{- if eq .Role "user" }}<|start_header_id|>user<|end_header_id|>
{{- if and $.Tools $last }}

{{ range $.Tools }}
{{- . }}
{{ end }}
{{ .Content }}<|eot_id|>
{{- else }}

{{ .Content }}<|eot_id|>
{{- end }}{{ if $last }}<|start_header_id|>assistant<|end_header_id|>

{{ end }}
{{- else if eq .Role "assistant" }}<|start_header_id|>assistant<|end_header_id|>
{{- if .ToolCalls }}
{{ range .ToolCalls }}
{"name": "{{ .Function.Name }}", "parameters": {{ json .Function.Arguments }}}{{ end }}
{{- else }}

{{ .Content }}
{{- end }}{{ if not $last }}<|eot_id|>{{ end }}
{{- else if eq .Role "tool" }}<|start_header_id|>ipython<|end_header_id|>

{{ .Content }}<|eot_id|>{{ if $last }}<|start_header_id|>assistant<|end_header_id|>

{{ end }}
{{- end }}
{{- end }}"""


def test_llama_writes_tools_calls_and_results():
    head = "<|start_header_id|>"
    assert GoChatTemplate(LLAMA_TOOLS).render(TALK[1:2], tools=[TOOL]) == (
        f"{head}system<|end_header_id|><|eot_id|>{head}user<|end_header_id|>\n\n{TOOL_JSON}\n\nHi<|eot_id|>"
        f"{head}assistant<|end_header_id|>\n\n"
    )
    assert GoChatTemplate(LLAMA_TOOLS).render(CALLED) == (
        f"{head}user<|end_header_id|>\n\nWeather in Oslo?<|eot_id|>{head}assistant<|end_header_id|>\n\n"
        '{"name": "weather", "parameters": {"city":"Oslo","days":1}}<|eot_id|>'
        f"{head}ipython<|end_header_id|>\n\nRain<|eot_id|>{head}assistant<|end_header_id|>\n\n"
    )
    assert GoChatTemplate(LLAMA_TOOLS).render(TALK) == LLAMA3_WRITTEN


def test_thoughts_and_their_switch_reach_the_template():
    source = (
        "{{ range .Messages }}{{ if .Thinking }}<think>{{ .Thinking }}</think>{{ end }}{{ .Content }};{{ end }}"
        "{{ if and $.IsThinkSet (not $.Think) }}<think></think>{{ end }}{{ .ThinkLevel }}"
    )
    talk = [{"role": "assistant", "content": "4", "reasoning_content": "2+2"}]
    template = GoChatTemplate(source)
    assert template.render(talk) == "<think>2+2</think>4;"
    assert template.render(talk, variables={"enable_thinking": False}) == "<think>2+2</think>4;<think></think>"
    assert (
        template.render(talk, variables={"enable_thinking": True, "reasoning_effort": "low"})
        == "<think>2+2</think>4;low"
    )


def test_neighbours_of_one_role_become_one_message():
    talk = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert GoChatTemplate(CHATML_TURNS).render(talk) == "<|im_start|>user\na\n\nb<|im_end|>\n<|im_start|>assistant\n"


def test_a_second_system_message_begins_a_new_turn():
    talk = [*TALK[:2], {"role": "system", "content": "Now be long."}, {"role": "user", "content": "Go"}]
    assert (
        GoChatTemplate("{{ .System }}/{{ .Prompt }}/{{ .Response }};").render(talk) == "Be brief./Hi/;Now be long./Go/"
    )


def test_messages_that_a_template_cannot_write_are_refused_and_not_dropped():
    with pytest.raises(RejectedMessages, match="no place for tool calls"):
        GoChatTemplate(CHATML_TURNS).render(CALLED)


def test_a_template_that_cannot_be_parsed_or_run_is_an_error():
    with pytest.raises(BrokenTemplate, match="no end in line 1"):
        GoChatTemplate("{{ if .System }}")
    with pytest.raises(RejectedMessages, match="no field Nothing"):
        GoChatTemplate("{{ range .Messages }}{{ .Nothing }}{{ end }}").render(TALK)
