"""Go's templates: what each construct writes (by the language's description), and that nothing runs without end."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.text.go_template import template
from quire.text.go_template.errors import GoRunError, GoSyntaxError, GoTooBig
from quire.text.go_template.template import GoTemplate
from quire.text.go_template.values import GoStruct

pytestmark = pytest.mark.pure

DATA = {
    "Name": "Ada",
    "Empty": "",
    "Zero": 0,
    "Yes": True,
    "List": ["a", "b", "c"],
    "Map": {"b": 2, "a": 1},
    "Deep": {"In": {"Here": "found"}},
    "Record": GoStruct({"Known": 1}, {"known": 1}),
    "Half": 0.5,
    "Whole": 3.0,
}


def run(source: str) -> str:
    return GoTemplate.read(source).run(DATA)


@pytest.mark.parametrize(
    "source, written",
    [
        ("plain } text {", "plain } text {"),
        ("{{ .Name }}", "Ada"),
        ("{{.Name}}!", "Ada!"),
        ("a \n {{- .Name -}} \t b", "aAdab"),
        ("a {{- /* gone */ -}} b{{/* and\nthis */}}c", "abc"),
        ("{{ -3 }}{{-3}}", "-3-3"),
        ("{{ .Deep.In.Here }} {{ .Map.nothing }}", "found <no value>"),
        ("{{ .Zero }} {{ .Yes }} {{ .Half }} {{ .Whole }} {{ .List }}", "0 true 0.5 3 [a b c]"),
        (r'{{ "q\"\n\t\x41é" }}{{ `raw\n"` }}', 'q"\n\tAéraw\\n"'),
        ("{{ 0x10 }} {{ 1_000 }} {{ 1.5e3 }} {{ 'a' }}", "16 1000 1500 97"),
        ("{{ if .Name }}x{{ end }}{{ if .Empty }}y{{ else }}z{{ end }}", "xz"),
        ("{{ if .Zero }}a{{ else if .Empty }}b{{ else if .Yes }}c{{ else }}d{{ end }}", "c"),
        ("{{ if .Record }}a record is true{{ end }}{{ if .List }}!{{ end }}", "a record is true!"),
        ("{{ with .Name }}<{{ . }}>{{ end }}{{ with .Empty }}a{{ else }}{{ .Name }}{{ end }}", "<Ada>Ada"),
        ("{{ with $x := .Name }}{{ $x }}{{ $.Zero }}{{ end }}", "Ada0"),
        ("{{ range .List }}{{ . }},{{ end }}", "a,b,c,"),
        ("{{ range $i, $e := .List }}{{ $i }}{{ $e }}{{ end }}{{ range $e := .List }}{{ $e }}{{ end }}", "0a1b2cabc"),
        ("{{ range $k, $v := .Map }}{{ $k }}={{ $v }};{{ end }}", "a=1;b=2;"),
        ("{{ range 3 }}{{ . }}{{ end }}{{ range .Empty2 }}x{{ else }}none{{ end }}", "012none"),
        ("{{ range .List }}{{ if eq . `b` }}{{ continue }}{{ end }}{{ . }}{{ end }}", "ac"),
        ("{{ range .List }}{{ if eq . `b` }}{{ break }}{{ end }}{{ . }}{{ end }}", "a"),
        ("{{ $x := 1 }}{{ if true }}{{ $x = 2 }}{{ $y := $x }}{{ $y }}{{ end }}{{ $x }}", "22"),
        ("{{ $x := 1 }}{{ if true }}{{ $x := 2 }}{{ $x }}{{ end }}{{ $x }}", "21"),
        ("{{ $last := `` }}{{ range .List }}{{ $last = . }}{{ end }}{{ $last }}", "c"),
        ("{{ eq .Name `Ada` }} {{ eq 1 2 3 1 }} {{ ne 1 2 }} {{ eq nil nil }}", "true true true true"),
        ("{{ lt 1 2 }} {{ le 2 2 }} {{ gt `b` `a` }} {{ ge 1 1.5 }}", "true true true false"),
        ("{{ and .Name .Empty }}|{{ or .Empty .Name }}|{{ not .Name }}", "|Ada|false"),
        ("{{ and false (index .List 99) }} {{ or true (index .List 99) }}", "false true"),
        ("{{ len .List }} {{ len .Name }} {{ len `é` }} {{ .Name | len }}", "3 3 2 3"),
        ("{{ index .List 1 }} {{ index .Map `a` }} {{ slice .List 1 }} {{ slice .Name 1 2 }}", "b 1 [b c] d"),
        ("{{ print 1 2 `x` 3 }}|{{ println `a` 1 }}", "1 2x3|a 1\n"),
        (
            '{{ printf "%s-%d-%5.2f|%-4s|%04d %q %v %t %%" .Name 7 1.5 `x` 42 `q"` .Half true }}',
            'Ada-7- 1.50|x   |0042 "q\\"" 0.5 true %',
        ),
        ("{{ .Name | printf `%s %s` `Dear` }}", "Dear Ada"),
        (
            '{{ json .Map }} {{ json .List }} {{ json `<é"&>` }}',
            '{"b":2,"a":1} ["a","b","c"] "\\u003cé\\"\\u0026\\u003e"',
        ),
        ("{{ .Record }} {{ json .Record }} {{ .Record.Known }}", '{"known":1} {"known":1} 1'),
        ("{{ (index .List 0) }}{{ (.Deep.In).Here }}{{ $.Deep.In.Here }}", "afoundfound"),
        ("{{ if and (eq .Name `Ada`) (not (eq (len .List) 2)) }}yes{{ end }}", "yes"),
        (
            '{{ define "t" }}[{{ . }}]{{ end }}{{ template "t" .Name }}{{ block "b" .Zero }}<{{ . }}>{{ end }}',
            "[Ada]<0>",
        ),
        ("{{ range $i, $_ := .List }}{{ if lt $i (slice $.List 1 | len) }}{{ $i }}{{ end }}{{ end }}", "01"),
    ],
)
def test_it_writes_what_go_writes(source, written):
    assert run(source) == written


@pytest.mark.parametrize(
    "source, line, problem",
    [
        ("a\n{{ .Name", 2, "not closed"),
        ("{{ if .A }}\nx", 1, "no end"),
        ("\n{{ end }}", 2, "nothing to belong to"),
        ("{{ else }}", 1, "nothing to belong to"),
        ("{{ nofunction 1 }}", 1, "no function 'nofunction'"),
        ("{{ $x }}", 1, "no variable"),
        ("{{ $x = 1 }}", 1, "no variable"),
        ("{{ .A .B }}", 1, "only a function"),
        ("{{ }}", 1, "missing"),
        ("{{ (.A }}", 1, "not closed"),
        ("{{ .A | 1 }}", 1, "must be a function"),
        ("{{ break }}", 1, "outside of a range"),
        ("{{/* open", 1, "comment"),
        (r'{{ "\q" }}', 1, "no escape"),
        ("{{ template .A }}", 1, "must be a string"),
        ("{{ ! }}", 1, "not expected"),
        ("{{ if .A }}" * 100, 1, "in each other"),
        ("{{ " + "(" * 100 + "1" + ")" * 100 + " }}", 1, "in each other"),
    ],
)
def test_a_syntax_error_names_its_line(source, line, problem):
    with pytest.raises(GoSyntaxError, match=problem) as caught:
        GoTemplate.read(source)
    assert caught.value.line == line


@pytest.mark.parametrize(
    "source",
    [
        "{{ .Record.Unknown }}",
        "{{ .Name.Field }}",
        "{{ .Name.__class__ }}",
        "{{ .Record.fields }}",
        "{{ index .List 3 }}",
        "{{ slice .List 2 1 }}",
        "{{ lt 1 `a` }}",
        "{{ eq .List .List }}",
        "{{ len 1 }}",
        "{{ not }}",
        "{{ range .Name }}{{ end }}",
        '{{ template "none" }}',
        '{{ printf "%99999d" 1 }}',
    ],
)
def test_a_run_time_error_is_raised(source):
    with pytest.raises(GoRunError):
        run(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ range 100000000 }}{{ end }}",
        "{{ range 10000 }}{{ range 10000 }}x{{ end }}{{ end }}",
        '{{ $x := "0123456789" }}{{ range 40 }}{{ $x = print $x $x }}{{ end }}',
        '{{ define "t" }}{{ template "t" . }}{{ end }}{{ template "t" . }}',
    ],
)
def test_steps_and_output_are_limited(source, monkeypatch):
    monkeypatch.setattr(template, "MAX_STEPS", 50_000)
    with pytest.raises(GoTooBig):
        run(source)


@given(
    st.lists(
        st.sampled_from(
            [
                "{{",
                "}}",
                "{{-",
                " -}}",
                "if",
                "end",
                "range",
                ".A",
                "$x",
                ":=",
                "|",
                "(",
                ")",
                '"',
                " ",
                "eq",
                "1",
                "else",
                "\n",
                "text",
                "/*",
                "*/",
                "template",
                "define",
            ]
        ),
        max_size=14,
    )
)
def test_any_text_is_read_or_refused(parts):
    try:
        read = GoTemplate.read("".join(parts))
    except GoSyntaxError:
        return
    with suppress(GoRunError, GoTooBig):
        read.run({"A": ["x"]})
