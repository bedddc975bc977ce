"""Chat templates: the text published ones make, and what hostile ones may not do."""

from __future__ import annotations

import sys
import tracemalloc

import pytest
from models import CHAT_TEMPLATE

from speccc.errors import InputError
from speccc.runtime.chat import ChatTemplate

MESSAGES = [
    {"role": "user", "content": "Hi <there> & 'you'"},
    {"role": "assistant", "content": "é"},
]
LLAMA3 = """{{- bos_token }}{% set loop_messages = messages %}
{%- for message in loop_messages %}
    {%- if message['role'] not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('Unknown role: ' ~ message.role) }}
    {%- endif %}
    {%- set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' %}
    {%- set content = content + message['content'] | trim + '<|eot_id|>' %}
    {{- content }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}"""


def test_chatml() -> None:
    text = ChatTemplate(CHAT_TEMPLATE).render(MESSAGES)
    assert text == (
        "<|im_start|>user\nHi <there> & 'you'<|im_end|>\n"
        "<|im_start|>assistant\né<|im_end|>\n<|im_start|>assistant\n"
    )
    short = ChatTemplate(CHAT_TEMPLATE).render(MESSAGES[:1], add_generation_prompt=False)
    assert short == "<|im_start|>user\nHi <there> & 'you'<|im_end|>\n"


def test_llama3() -> None:
    template = ChatTemplate(LLAMA3, "m.gguf")
    text = template.render([{"role": "user", "content": " hi\n"}], bos_token="<B>")
    assert text == (
        "<B><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    with pytest.raises(InputError, match=r"^m.gguf: chat template: refuses.*Unknown role: tool$"):
        template.render([{"role": "tool", "content": ""}])


def test_equals_transformers() -> None:
    render = pytest.importorskip("transformers.utils.chat_template_utils").render_jinja_template
    tools = [{"type": "function", "function": {"name": "f<é>", "parameters": {"a": [1, 2.5]}}}]
    source = (
        "{% for t in tools %}\n  {% if loop.first %}\nT:{% endif %}\n"
        "{{ t | tojson }}{{ t | tojson(indent=2) }}\n{% endfor %}\n"
        "{% set ns = namespace(n=0) %}\n{% for m in messages[::-1] %}\n"
        "{% if m.role == 'user' and not m.content.startswith('x') %}{% set ns.n = ns.n + 1 %}"
        "{% continue %}{% endif %}{{ m['content'] | upper }}|{{ m.role.split('s') | join('-') }}\n"
        "{% endfor %}{{ ns.n }}{{ messages | map(attribute='role') | list }}"
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}"
        "{{ ('a\nb') | indent(3) }}{{ x is defined }}{{ 7 % 4 }}{{ 'ab' * 1 if false else 2 * 3 }}"
    )
    want, _ = render([MESSAGES], tools=tools, chat_template=source, add_generation_prompt=True)
    assert ChatTemplate(source).render(MESSAGES, variables={"tools": tools}) == want[0]


def grow(start: str, body: str) -> str:
    """A template that applies `body` to `ns.x` many times."""
    loop = "{% for i in range(60) %}" + body + "{% endfor %}"
    return "{% set ns = namespace(x=" + start + ") %}" + loop + "{{ ns.x }}"


HOSTILE: list[tuple[str, str]] = [
    ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "steps"),
    ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
    ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "recursion"),
    ("{{ 'a' * 10**9 }}", "multiplies"),
    ("{{ [1] * 10**9 }}", "multiplies"),
    ("{{ 2**99999999 }}", "power too large"),
    ("{{ 9**64**9 }}", "power too large|bits"),
    ("{{ '%1000000000d' % 1 }}", "formats a text"),
    ("{{ '{:>1000000000}'.format(1) }}", "formats a text"),
    ("{{ 'x'.ljust(10**10) }}", "unsafe"),
    ("{{ 'x'|center(10**10) }}", "No filter named 'center'"),
    ("{{ 'x'|indent(10**10) }}", "indents a text too far"),
    ("{{ [1]|tojson(indent=10**10) }}", "indents JSON too far"),
    ("{{ lipsum(10**6) }}", "'lipsum' is undefined"),
    (grow("'aaaa'", "{% set ns.x = ns.x ~ ns.x %}"), "text longer than"),
    (grow("'aaaa'", "{% set ns.x = ns.x + ns.x %}"), "value of over"),
    (grow("'aaaa'", "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"), "over|longer"),
    (grow("'aaaa'", "{% set ns.x = ns.x.replace('a', ns.x) %}"), "replaces|over"),
    (grow("'aaaa'", "{% set ns.x = ns.x | replace('a', ns.x) %}"), "replaces|over"),
    (grow("'aaaa'", "{% set ns.x = range(9999) | join(ns.x) %}"), "joins too much|over"),
    (grow("'aaaa'", "{% set ns.x = ns.x.join(['a'] + 9999 * [1]) %}"), "multiplies"),
    (grow("[1]", "{% set ns.x = [ns.x, ns.x] %}"), "value of over"),
    (grow("[1]", "{% set ns.x = (ns.x, ns.x) %}"), "value of over"),
    (grow("[1]", "{% set ns.x = {'a': ns.x, 'b': ns.x} %}"), "value of over"),
    (grow("[1]", "{% set ns.x = dict(a=ns.x, b=ns.x) %}"), "value of over"),
    (grow("1", "{% set ns.x = namespace(a=ns.x, b=ns.x) %}"), "value of over"),
    ("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", "value of over"),
    ("{{ 1.5 | round(10**9, 'ceil') }}", "too many decimals"),
    ("{{ 1.5 | round(999999999, 'ceil') }}", "too many decimals"),
    ("{{ 1.5 | round(method='floor', precision=999999999) }}", "too many decimals"),
    ("{{ (1).to_bytes(9999999999, 'big') }}", "unsafe"),
    ("{{ 'a'.encode().ljust(9999999999) }}", "unsafe"),
    ("{{ 'a'.zfill(9999999999) }}", "unsafe"),
    (grow("9", "{% set ns.x = ns.x * ns.x %}"), "number of more than 1024 bits"),
    ("{% for i in range(99999) %}{{ 'a' * 0 or '" + "b" * 200 + "' }}{% endfor %}", "multiplies"),
    ("{% for i in range(99999) %}{{ '" + "b" * 20_000 + "' }}{% endfor %}", "text longer than"),
    ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ("{{ raise_exception.__globals__.x }}", "unsafe"),
    ("{{ ns.__init__.__globals__ }}", "unsafe"),
    ("{{ namespace.__init__.__globals__.sys }}", "unsafe"),
    ("{{ messages.append(1) }}", "unsafe"),
    ("{{ messages | map('attr', '__class__') | list }}", "No filter named 'attr'"),
    ("{% include 'x' %}", "no loader"),
    ("{% import '/etc/passwd' as x %}", "no loader"),
    ("{{ nothing.at.all }}", "'nothing' is undefined"),
    ("{{ messages[5].content }}", "no element 5"),
    ("{{ 1 / 0 }}", "division by zero"),
    ("{{ 1 + 'a' }}", "unsupported operand"),
    ("{{ raise_exception('no\nlines') }}", "refuses the messages: no lines"),
    ("{{ strftime_now('%9999d') }}", "short format"),
]


@pytest.mark.parametrize(("source", "message"), HOSTILE)
def test_hostile_templates_are_stopped(source: str, message: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=message) as caught:
            ChatTemplate(source, "m.gguf").render(MESSAGES, max_steps=20_000)
        # The limit of 8 MiB characters, of up to 4 bytes, a few times over.
        assert tracemalloc.get_traced_memory()[1] < 128 << 20
    finally:
        tracemalloc.stop()
    assert str(caught.value).startswith("m.gguf: chat template: ")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


BROKEN = [
    "{% if %}",
    "{{ }}",
    "{% endfor %}",
    "{{ x | nope }}",
    "{% unknown %}",
    "{{ " + "(" * 500 + "1" + ")" * 500 + " }}",
    "{{ " + "[" * 3000 + "]" * 3000 + " }}",
    "x" * ((1 << 20) + 1),
]


@pytest.mark.parametrize("source", BROKEN, ids=range(len(BROKEN)))
def test_broken_templates_are_refused(source: str) -> None:
    with pytest.raises(InputError, match=r"^m.gguf: chat template: "):
        ChatTemplate(source, "m.gguf")


def test_time_is_limited() -> None:
    source = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(InputError, match="takes too long"):
        ChatTemplate(source).render(MESSAGES, max_steps=10**12, max_seconds=0)


def test_bad_messages_are_refused() -> None:
    template = ChatTemplate(CHAT_TEMPLATE)
    loop: list[object] = []
    loop.append(loop)
    for bad in ([{"content": "x"}], ["x"], [{"role": 1}], [{"role": "user", "content": loop}]):
        with pytest.raises(InputError, match="message"):
            template.render(bad)  # type: ignore[arg-type]


def test_tracing_is_left_as_it_was() -> None:
    before = sys.gettrace()
    with pytest.raises(InputError):
        ChatTemplate("{{ nothing.x }}").render(MESSAGES)
    assert sys.gettrace() is before


def test_templates_see_copies() -> None:
    messages = [{"role": "user", "content": "a"}]
    ChatTemplate("{% set messages = 3 %}").render(messages)
    assert messages == [{"role": "user", "content": "a"}]
