"""An HTML page in one file: styles and plots are inline, and nothing is loaded from elsewhere.

The functions below return parts of a page, with their text escaped; `document` joins them. The page follows the
system's light or dark theme, and wide tables scroll on a phone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from quire.report.plot import Html, legend

STYLE = """
:root{color-scheme:light dark;--page:#fff;--text:#1b1f24;--soft:#59636e;--rule:#d9dee4;--panel:#f6f8fa;
--s0:#1f6feb;--s1:#c2570c;--s2:#0f8a6d;--s3:#8250df;--s4:#bf3989;--s5:#6e7781}
@media(prefers-color-scheme:dark){:root{--page:#0f1318;--text:#e3e8ee;--soft:#98a3af;--rule:#2b333c;--panel:#171d24;
--s0:#6cb0ff;--s1:#f29a55;--s2:#3fc9a3;--s3:#b799ff;--s4:#f08cc4;--s5:#a3adb8}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.5rem 1rem 4rem;max-width:70rem;background:var(--page);color:var(--text);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;line-height:1.2;margin:.5rem 0}h2{font-size:1.2rem;margin:2.2rem 0 .6rem}h3{font-size:1rem}
p,ul,ol{max-width:46rem}.soft{color:var(--soft)}code,pre{font:.86em ui-monospace,monospace}
pre{background:var(--panel);border:1px solid var(--rule);border-radius:6px;padding:.7rem;overflow-x:auto}
.conclusion{border-left:4px solid var(--s0);padding:.1rem 1rem;background:var(--panel);border-radius:0 6px 6px 0}
.scroll{overflow-x:auto;border:1px solid var(--rule);border-radius:6px}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{padding:.35rem .7rem;text-align:right;white-space:nowrap;border-top:1px solid var(--rule)}
thead th{border-top:0;color:var(--soft);font-weight:600;background:var(--panel)}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--page)}
thead th:first-child{background:var(--panel)}td.best{font-weight:700}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1.2rem}
figure{margin:0;border:1px solid var(--rule);border-radius:6px;padding:.7rem}
figcaption{font-weight:600;font-size:.95rem}figcaption+p{margin:.1rem 0 .4rem;color:var(--soft);font-size:.85rem}
figure>svg{width:100%;height:auto;display:block;overflow:visible}
svg text{font:12px system-ui,sans-serif;fill:var(--soft)}svg text.small{font-size:11px;fill:var(--text)}
svg .grid{stroke:var(--rule);stroke-width:1;fill:none}svg .line{fill:none;stroke-width:2;stroke-linejoin:round}
.key{display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:.3rem 0 .6rem;font-size:.9rem}
.key svg{width:.9em;height:.9em;margin-right:.35em}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(10rem,1fr));gap:.8rem}
.cards div{border:1px solid var(--rule);border-radius:6px;padding:.6rem .8rem}
.cards b{display:block;font-size:1.25rem}.cards span{color:var(--soft);font-size:.85rem;display:block}
""" + "".join(f".line.s{index}{{stroke:var(--s{index})}}.fill.s{index}{{fill:var(--s{index})}}" for index in range(6))


def heading(text: str, level: int = 2) -> Html:
    """Return the heading of a section."""
    return Html(f"<h{level}>{escape(text)}</h{level}>")


def paragraph(text: str, kind: str = "") -> Html:
    """Return a paragraph. The kind "soft" is for secondary text."""
    style = f' class="{escape(kind)}"' if kind else ""
    return Html(f"<p{style}>{escape(text)}</p>")


def listing(items: Iterable[str]) -> Html:
    """Return a bulleted list."""
    return Html("<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>")


def conclusion(sentences: Iterable[str]) -> Html:
    """Return a highlighted box with the conclusion of the page."""
    return Html('<div class="conclusion">' + "".join(f"<p>{escape(text)}</p>" for text in sentences) + "</div>")


def code(text: str) -> Html:
    """Return preformatted text."""
    return Html(f"<pre>{escape(text)}</pre>")


def cards(items: Iterable[tuple[str, str, str]]) -> Html:
    """Return cards with the most important numbers: name, value and remark of each."""
    boxes = (f"<div><span>{escape(a)}</span><b>{escape(b)}</b><span>{escape(c)}</span></div>" for a, b, c in items)
    return Html(f'<div class="cards">{"".join(boxes)}</div>')


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], best: Iterable[tuple[int, int]] = ()) -> Html:
    """Return a table whose first column stays visible. Cells at `best` (row, column) are emphasized."""
    best_cells = set(best)
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = []
    for row_index, row in enumerate(rows):
        cells = (
            f"<td{' class=best' if (row_index, column) in best_cells else ''}>{escape(cell)}</td>"
            for column, cell in enumerate(row)
        )
        body.append(f"<tr>{''.join(cells)}</tr>")
    return Html(
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
    )


def figure(title: str, plot: Html, note: str = "", names: Sequence[str] = ()) -> Html:
    """Return a plot with its title, a note, and a legend of the series' names."""
    paragraph = f"<p>{escape(note)}</p>" if note else ""
    return Html(
        f"<figure><figcaption>{escape(title)}</figcaption>{paragraph}{legend(names) if names else ''}{plot}</figure>"
    )


def figure_grid(items: Iterable[Html]) -> Html:
    """Return a grid of figures."""
    return Html(f'<div class="plots">{"".join(items)}</div>')


def details(summary: str, parts: Iterable[Html]) -> Html:
    """Return parts that are collapsed below a summary."""
    return Html(f"<details><summary>{escape(summary)}</summary>{''.join(parts)}</details>")


def document(title: str, parts: Iterable[Html]) -> Html:
    """Return the whole page."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
    )
    body = "\n".join((f"<h1>{escape(title)}</h1>", *parts))
    return Html(f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n')
