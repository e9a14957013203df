#!/usr/bin/env python3
"""make_chat.py - cases.json: what transformers (with jinja2) makes of chat templates and of many small expressions.

    python3 tests/golden/chat/make_chat.py          needs transformers 5 and jinja2 3.1

The templates beside this file use the constructs of the well-known families (LLaMA-3 to 3.2, Mistral 7B v0.1 to
v0.3, Qwen2 and 2.5, ChatML) in our own words; small cases are lines of expressions.txt, templates.txt and failing.txt.
tests/golden/test_chat_golden.c replays the cases. The clock stands at 4 March 2025, 15:07:09.
"""
import datetime
import json
import pathlib

import transformers.utils.chat_template_utils as reference

HERE = pathlib.Path(__file__).resolve().parent


def lines_of(name):
    return (HERE / name).read_text().strip().split("\n")


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2025, 3, 4, 15, 7, 9)


reference.datetime = Clock

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather in a \"city\" – today.",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "Where"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "days": {"type": "array", "items": {"type": "integer"}},
        "exact": {"type": "number", "default": 0.5}}, "required": ["city"]},
    "return": {"type": "string"}}}
CLOCK = {"type": "function", "function": {"name": "get_time", "description": "The time", "parameters": {
    "type": "object", "properties": {}}}}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "id": "abc123XYZ", "function": {
    "name": "get_weather", "arguments": {"city": "Zürich", "days": [1, 2], "ok": True, "none": None, "x": 1.0}}}]}
SEARCH = {"role": "assistant", "tool_calls": [{"type": "function", "id": "abc123XYZ", "function": {
    "name": "wolfram", "arguments": {"query": "1+1", "lang": "en"}}}]}

user = lambda text: {"role": "user", "content": text}
bot = lambda text: {"role": "assistant", "content": text}
system = lambda text: {"role": "system", "content": text}

TALKS = {
    "one": [user("Hello!")],
    "two": [user("  Hi, 世界 🌍  "), bot(" Grüezi.\n")],
    "four": [user("a"), bot("b"), user("c"), bot("d")],
    "three": [user("1 < 2 & \"3\""), bot("yes"), user("and 'now'?\n\nsecond\tline")],
    "system": [system(" Be brief. "), user("Who?"), bot("Me."), user("Why?")],
    "system_four": [system("Be brief."), user("Who?"), bot("Me."), user("Why?"), bot("So.")],
    "two_systems": [system("A"), user("b"), system("C"), user("d")],
    "not_alternating": [user("a"), user("b")],
    "unknown_role": [user("a"), {"role": "critic", "content": "b"}],
    "call": [user("Weather?"), CALL, {"role": "tool", "name": "get_weather", "tool_call_id": "abc123XYZ",
             "content": "{\"t\": 21.5}"}, bot("21.5 degrees.")],
    "call_map": [user("Weather?"), CALL, {"role": "tool", "tool_call_id": "abc123XYZ",
                 "content": {"t": 21.5, "sky": ["blue", None, False]}}, bot("Fine.")],
    "call_user": [user("Weather?"), CALL, {"role": "tool", "tool_call_id": "abc123XYZ", "content": "12"},
                  bot("12."), user("And now?")],
    "two_results": [user("Go"), CALL, {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}, bot("Done")],
    "bad_id": [user("Weather?"), {"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "f",
               "arguments": {}}}]}],
    "search": [user("1+1?"), SEARCH, {"role": "ipython", "content": "2"}, bot("It is 2.")],
    "parts": [user([{"type": "text", "text": "look: "}, {"type": "image"}, {"type": "text", "text": "there"}]),
              bot("<think>hm</think>\n\nI see."), user("More"), bot("<think>ok</think>\n\nDone.")],
    "reasoning": [user("q"), {"role": "assistant", "reasoning": "because", "content": "a"}],
    "empty": [],
}
FAMILIES = ["llama3", "llama31", "mistral_v01", "mistral_v02", "mistral_v03", "qwen2", "qwen25", "chatml", "marked",
            "macros"]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
OPTIONS = {
    "plain": TOKENS,
    "prompt": dict(TOKENS, add_generation_prompt=True),
    "tools": dict(TOKENS, tools=[WEATHER, CLOCK]),
    "date": dict(TOKENS, tools=[WEATHER], variables={"date_string": "26 Jul 2024"}),
    "not_in_user": dict(TOKENS, tools=[WEATHER], variables={"tools_in_user_message": False}),
    "builtin": dict(TOKENS, tools=[WEATHER], variables={"builtin_tools": ["wolfram", "code_interpreter"]}),
    "custom": dict(TOKENS, tools=[WEATHER], variables={"custom_tools": [CLOCK]}),
}

VARS = {"n": 3, "f": 2.5, "s": "Hello, World", "u": "naïve 日本 🌍", "e": "", "l": [3, 1, 2], "t": True, "z": None,
        "d": {"b": 2, "a": 1, "items": "own"}, "deep": [{"k": {"v": [1, {"w": "x"}]}}], "w": " \t pad \n",
        "people": [{"name": "Zoe", "age": 30}, {"name": "ann", "age": 7}, {"name": "Bob", "age": 30, "tag": "x"}],
        "mixed": [1, "a", None, True, 2.0, [1], {"q": "'"}]}

EXPRESSIONS = lines_of("expressions.txt")
TEMPLATES = lines_of("templates.txt")

LAYOUTS = [
    "a\n{% if true %}\n  b\n{% endif %}\nc\n",
    "a\n    {% if true %}   \n  b\n    {% endif %}\nc\n\n",
    "  {%- if true -%}\n  b \n {%- endif %} c",
    "  {%+ if true %}\n  b\n {%+ endif +%}\n c",
    "x  {% if true %}y{% endif %}  z\n",
    "\n\n{% for i in l %}\n  - {{ i }}\n{% endfor %}\nend\n",
    "{% for i in l -%}\n  - {{ i }}\n{% endfor -%}\n\n  end",
    "{# c #}\n  {# d #}\nx{# e #}\ny {#- f -#} \n z",
    "  {{ n }}  \n  {{- n -}}  \n  x",
    "a\r\nb\rc{% if true %}\r\nd{% endif %}\r\n",
    "{% set x = 'a\nb' %}{{ x }}\n",
    "line\n\t{% set x = 1 %}\nnext {{ x }}\n",
    "  {% raw %}\n x {% endraw %}\n y",
    "{{ n }}\n{{ n }}\n\n",
    "",
    "\n",
    "\n\n",
    "{% if true %}{% endif %}\n{% if true %}{% endif %}\n",
    "  {% if true %}  {% endif %}  \n",
    "{%- if true %}  a  {%- endif %}",
    "a \u00a0\u3000{%- if true -%}\u2003 b{% endif %}",
    "{{ 'x' }}{#- -#}   y {{ 'z'\n  ~ 'w' }}",
    "{%if n%}tight{%endif%}{{n}}{{-n-}}",
]

FAILING = lines_of("failing.txt")


def render(template, messages, options, spans=False):
    """(text, spans in bytes or None), or None when transformers refuses."""
    kwargs = {k: v for k, v in options.items() if k != "variables"}
    kwargs.update(options.get("variables", {}))
    try:
        texts, marks = reference.render_jinja_template([messages], chat_template=template,
                                                       return_assistant_tokens_mask=spans, **kwargs)
    except Exception:
        return None
    to_bytes = lambda at: len(texts[0][:at].encode())
    return texts[0], [[to_bytes(a), to_bytes(b)] for a, b in marks[0]] if spans else None


def case(name, template, messages, options, file=None):
    made = {"name": name, "file": file} if file else {"template": template}
    marked = file == "marked"
    result = render(template, messages, options, marked)
    if result is None: made["fails"] = True
    else: made["output"] = result[0]
    if result and marked: made["spans"] = result[1]
    return made


def family_case(family, talk, how):
    """The case names its conversation and its options; both are stored once."""
    made = case(f"{family}/{talk}/{how}", (HERE / f"{family}.jinja").read_text(), TALKS[talk], OPTIONS[how], family)
    return dict(made, talk=talk, how=how)


def family_cases():
    for family in FAMILIES:
        for talk in TALKS:
            yield family_case(family, talk, "plain")
            yield family_case(family, talk, "prompt")
        for talk in ("one", "system", "call", "call_user", "empty"): yield family_case(family, talk, "tools")
    for how in ("date", "not_in_user", "builtin", "custom"):
        for talk in ("three", "search"): yield family_case("llama31", talk, how)


def small_cases():
    share = {"variables": VARS}
    for e in EXPRESSIONS: yield case("", "{{ " + e + " }}", [user("x")], share)
    for t in TEMPLATES: yield case("", t, [user("x")], share)
    for t in LAYOUTS: yield case("", t, [user("x")], share)
    for t in FAILING: yield case("", t, [user("x")], share)


def main():
    families, small = list(family_cases()), list(small_cases())
    wrong = [c["template"] for c in small if ("fails" in c) != (c["template"] in FAILING)]
    if wrong: raise SystemExit("expected otherwise: " + "\n".join(wrong))
    whole = {"talks": TALKS, "options": OPTIONS, "variables": VARS, "families": families, "small": small}
    text = json.dumps(whole, ensure_ascii=False, indent=0)
    (HERE / "cases.json").write_text(text + "\n")
    print(len(families), "conversations,", len(small), "small cases,", len(text), "bytes")


if __name__ == "__main__":
    main()
