#!/usr/bin/env python3
"""make_chat.py - cases.json: what transformers (with jinja2) makes of chat templates and of many small expressions.

    python3 tests/golden/chat/make_chat.py          needs transformers 5 and jinja2 3.1

The templates beside this file use the constructs of the well-known families (LLaMA-3 to 3.2, Mistral 7B v0.1 to
v0.3, Qwen2 and 2.5, ChatML) in our own words. tests/golden/test_chat_golden.c replays the cases. The clock stands
at 4 March 2025, 15:07:09.
"""
import datetime
import json
import pathlib

import transformers.utils.chat_template_utils as reference

HERE = pathlib.Path(__file__).resolve().parent


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

EXPRESSIONS = r"""
1 + 2 * 3 - 4 // 3
7 / 2
7 // 2
-7 // 2
-7 % 3
7 % -3
7.5 // 2
-7.5 % 2
5.5 % -2
2 ** 10
2 ** -1
2 ** 3 ** 2
-2 ** 2
2.0 ** 0.5
1 / 3
10 / 5
1e16
1e15
1e22 * 10
123456789012345680.0
0.0001
0.00001
1.5e-7
0.1 + 0.2
100.0
-0.0
1_000 + 1
true + 1
True and none
none or 'x'
not e
not l
1 < 2 < 3
1 < 3 < 2
1 == 1.0 == true
'a' < 'b'
[1, 2] < [1, 3]
(1, 2) == [1, 2]
{'a': 1} == {'a': 1.0}
'ell' in s
'x' not in s
3 in l
'a' in d
'k' in deep[0]
missing in l
1 in missing
missing == missing
missing == none
missing ~ 'x'
missing
missing is defined
missing | default('dflt')
z | default('dflt')
z | default('dflt', true)
e | default('dflt', boolean=true)
n | default
s[0]
s[-1]
s[1:4]
s[:-3]
s[::-1]
s[::2]
s[10:2:-3]
s[100:]
s[-100:3]
u[2]
u[-1]
u[::-1]
u[6:8]
l[1:]
l[::-1]
l[5]
l[-3]
l[-4] is defined
(1, 2, 3)[1:]
[1, 2] + [3]
[0] * 3
3 * 'ab'
'ab' * -1
(1,)
()
(1, 2)
[1, 'it''s', "q\"q", 'both\'"', 'nl\n', 'é', '\x07', '\u200b', '\U0001F600']
{'k': 'v', 1: [none, true, 1.5]}
mixed
d
d.a
d.items is callable
d['items']
d.nope is defined
d.get('a')
d.get('nope')
d.get('nope', 'dd')
d.keys() | list
d.values() | list
d.items() | list
d | items | list
d | length
d | list
d | dictsort
d | dictsort(reverse=true)
{'b': 1, 'a': 2, 'C': 0} | dictsort(false, 'value')
deep[0].k.v[1].w
deep[0]['k']['v'][0]
deep.0.k.v.1.w
s.upper()
s.lower()
s | upper
s | lower
u.upper()
'ÀÉ Ñandú'.lower()
'straight'.capitalize()
'hello wORLD'.title()
'hello-wORLD (x)' | title
'abc' | capitalize
w.strip() ~ '|'
w.lstrip() ~ '|'
w.rstrip() ~ '|'
w | trim ~ '|'
'xxabcxx'.strip('x')
'xyabcyx' | trim('xy')
s.split(', ')
s.split()
'a,b,,c'.split(',')
'a,b,,c'.split(',', 1)
'a,b,c'.rsplit(',', 1)
'  a  b c '.split()
'  a  b c '.split(none, 1)
'a\nb\r\nc\n'.splitlines()
'a\nb\r\nc'.splitlines(true)
s.startswith('Hell')
s.endswith('orld')
s.startswith(('x', 'H'))
s.replace('l', 'L')
s.replace('l', 'L', 2)
s | replace('o', 0)
s | replace('l', 'L', 1)
'aaa'.replace('', '-')
'aaaa'.count('aa')
s.find('o')
s.rfind('o')
s.find('zzz')
u.find('日')
s.index('W')
'x'.join(['a', 'b'])
'42'.isdigit()
'4x'.isdigit()
'ab'.isalpha()
''.isalpha()
'  '.isspace()
'ABC'.isupper()
'aBC'.islower()
'abc' is lower
'prefix-x'.removeprefix('prefix-')
'x.py'.removesuffix('.py')
'7'.zfill(3)
'-7'.zfill(4)
'ab'.ljust(4) ~ '|'
'ab'.rjust(4, '.')
'ab'.center(5, '*')
'abc'.center(6, '*')
'ab' | center(6) ~ '|'
u | length
s | length
l | length
missing | length
l | first
l | last
[] | first is defined
'abc' | first
'abc' | last
l | sort
l | sort(reverse=true)
['b', 'A', 'c'] | sort
['b', 'A', 'c'] | sort(case_sensitive=true)
people | sort(attribute='age') | map(attribute='name') | list
people | sort(attribute='name') | map(attribute='name') | join(', ')
l | min
l | max
l | sum
people | sum(attribute='age')
people | map(attribute='tag', default='-') | list
people | map(attribute='tag') | map('default', 'none') | list
people | selectattr('age', 'gt', 10) | map(attribute='name') | list
people | selectattr('tag', 'defined') | list | length
people | selectattr('tag') | list | length
people | rejectattr('tag') | list | length
people | rejectattr('age', 'equalto', 30) | map(attribute='name') | first
people | selectattr('name', 'in', ['Zoe', 'Bob']) | map(attribute='name') | join('/')
[1, 2, 3, 4] | select('odd') | list
[1, 2, 3, 4] | reject('divisibleby', 2) | list
[0, 1, '', 'a', none] | select | list
['a', 'B'] | map('upper') | list
[1.5, 2] | map('int') | list
[[1, 2], [3]] | map('first') | list
[1, 1, 2, 'a', 'A'] | unique | list
l | reverse | list
'abc' | reverse
l | join('-')
people | join(', ', attribute='name')
'abc' | join('.')
d | join('.')
l | string
l | list | string | length
mixed | tojson
d | tojson
u | tojson
u | tojson(ensure_ascii=true)
'a"b\\c\n\t\x01\x7f/é' | tojson
deep | tojson(indent=2)
deep | tojson(indent=none)
d | tojson(sort_keys=true)
mixed | tojson(separators=(',', ':'))
d | tojson(indent=4, sort_keys=true)
[] | tojson(indent=2)
{} | tojson
{1: 2, none: 3, true: 4, 1.5: 5} | tojson
(1, 2) | tojson
1.0 | tojson
1e100 | tojson
'x' | tojson | tojson
'12' | int
'12.7' | int
'x' | int
'x' | int(-1)
' 7 ' | int
3.99 | int
-3.99 | int
true | int
'1.5' | float
'x' | float
3 | float
-5 | abs
-5.5 | abs
2.5 | round
3.14159 | round(2)
2.1 | round(0, 'ceil')
2.9 | round(method='floor')
7 | round
'a\nb\n\nc' | indent
'a\nb\n\nc' | indent(2, true)
'a\n\nb' | indent(2, blank=true)
'a\nb' | indent('> ', first=true)
'<a href="x">&''</a>' | escape
'<b>' | safe
'<b>' | e
12 | upper
none | string
true | string
1 is number
true is number
true is boolean
1 is boolean
1.0 is float
1 is integer
true is integer
's' is string
d is mapping
l is mapping
l is iterable
1 is iterable
's' is iterable
d is iterable
none is none
missing is none
missing is undefined
missing is iterable
l is sequence
's' is sequence
d is sequence
1 is sequence
3 is odd
3 is even
9 is divisibleby 3
9 is divisibleby(2)
n is eq 3
n is equalto 4
n is not equalto 4
n is ne 4
n is lt 4
n is ge 3
n is in [1, 2, 3]
'a' is in 'abc'
true is true
1 is true
false is false
namespace is callable
n is defined and n is not none
not n is defined
'yes' if n > 2 else 'no'
'yes' if n > 5
('yes' if n > 5) is defined
'a' if false else 'b' if false else 'c'
n > 2 and 'big' or 'small'
-1 | abs
-n
+n
- -n
not not n
1 - -1
range(5) | list
range(2, 5) | list
range(5, 0, -2) | list
range(3) | length
range(10)[3]
dict(a=1, b='x')
dict({'a': 1}, b=2)
namespace(a=1).a
'a' 'b' 'c'
'\x41\u00e9\101\q\'\"'
"tab\there"
'multi' ~ 1 ~ none ~ 2.0 ~ [1]
1 ~ 2 + 3 ~ 4
'%' ~ '}' ~ '{{'
{'a': {'b': 1}}.a.b
{'a': 1}['a']
[1, 2, 3,][-1]
('x')
('x',)
strftime_now('%d %b %Y')
strftime_now('%Y-%m-%d %H:%M:%S')
strftime_now('')
1 in {1: 2}
none in [none]
[] == ()
'' == none
0 == false
'b' > 'a' and 'é' > 'z'
[1, [2, 3]] == [1, [2, 3]]
{'x': [1]}.x[0] + 1
l | map('string') | join
l | list == l
'abc'[1] ~ 'abc'[1:][0]
'abc'[5] is defined
'a-b_c'.split('-')[1].split('_')[0]
'{"a": 1}'[1:-1]
(l | first) + (l | last)
('a' ~ 'b') | upper
'a' ~ 'b' | upper
n | string + 'x'
not true or true
1 + 1 == 2 and 2 * 2 == 4
'x' * n
people[0].name ~ people[-1]['name']
people | map(attribute='name') | map('lower') | sort | join(',')
d.copy() == d
l.index(1)
l.count(3)
'<' + ('<'|safe)
('<'|safe) + '<'
('<b>'|e) + '&'
'&' + ('<b>'|e) + ('x'|safe)
('<'|safe) ~ '<' ~ ('<'|e)
('<'|e) * 2
('<a> '|safe).strip() + '<'
('<a>'|safe).upper() + '&'
('<a>'|safe)|upper + '&'
('a'|safe).replace('a', '<')
('a'|safe)|replace('a', '<') + '<'
(', '|safe).join(['<', 'b'|safe]) + '<'
['<', ('<'|safe)]|join('&')
('<a b>'|safe).split(' ')[0] + '<'
('<a b>'|safe)[0] + '<'
('<a b>'|safe)[1:] + '<'
('<a>'|safe)|trim + '<'
('<a>'|safe)|string + '<'
('<a>'|safe)|e + '<'
('<a>'|safe)|forceescape
('<a>'|safe)|lower|e
('<a>'|e)|e|e
('a\nb'|safe)|indent(2) + '<'
('<'|safe) == '<'
'<' in ('<'|safe)
('<'|safe) is escaped
'<' is escaped
('<'|safe)|length
{'a': '<'|safe}['a'] + '<'
('<a>'|safe)|title + '<'
('<a>'|safe).title() + '<'
('<{}>'|safe).format('<')
('<'|safe)|tojson
('<'|safe)|default('x') + '<'
['<'|safe, '<']|first + '<'
('%s'|format('<'))
'a\r\nb\x0bc\x1cd\u2028e\n\nf'|indent(2)
'a\r\nb\n'|indent(2)
'a\n\nb'|indent(2, true)
'a\n\nb'|indent(2, blank=true)
'a\n\nb'|indent('> ', first=true, blank=true)
''|indent
'\n'|indent(1, true, true)
'ß'.upper()
'ŉǰΐ ﬁ ﬃ'.upper()
'ᾳ'.upper()
'İ'.lower()
'ΑΣ ΣΑΣ Σ'.lower()
'ΟΔΟΣ.'.lower()
'ΑΣ1 ΑΣ-Β'.lower()
'ΣΙΣΥΦΟΣ'|title
'ΣΙΣΥΦΟΣ'.title()
'ǆ ǅ Ǆ'.title()
'ǆ'.capitalize()
'ßa ŉb'.capitalize()
'ßa ŉb'.title()
'ßa ŉb-cD (eF'|title
'ÀÉÎ Ñ ŁÓDŹ ŽIVOT ІЇЄ ԱԲ ᲐᲑ Ⴀ Ȿ'.lower()
'àéî ñ łódź život іїє աբ ა Ꭰ ꭰ ⅷ ⓐ 𐐨'.upper()
'aBcÉß'.swapcase()
'ǅ'.isupper()
'ǅ'.islower()
'ªº'.islower()
'ⅷ'.islower()
'ÀB1'.isupper()
'日本'.isalpha()
'٣'.isdigit()
'²'.isdigit()
'½'.isdigit()
'½'.isnumeric()
'²'.isdecimal()
'一'.isnumeric()
'a²'.isalnum()
'\u3000'.isspace()
'é'.isascii()
''.isascii()
'a\nb'.isprintable()
'٣٤'|int
'１２'|int
'1_000'|int
'1__0'|int
'_1'|int
'1_'|int
' +7 '|int
'- 7'|int
'0x1f'|int
'0x1f'|int(0, 16)
'1f'|int(base=16)
'0b101'|int(base=0)
'0o17'|int(9, 8)
'z'|int(base=36)
'010'|int(5, 0)
'12.7'|int
'1e3'|int
'1_0.5_0'|float
'٣.٥'|float
'1e1_0'|float
'1._5'|float
'inf'|float
'-Infinity'|float
'nan'|float
'+.5'|float
'5.'|float
'1e400'|float
'0x10'|float
'infinite'|float(1.5)
true|int
none|int(4)
[]|int(5)
'{} {}'.format(1, 'b')
'{0}{1}{0}'.format('a', 'b')
'{a}-{b}'.format(a=1, b=2.5)
'{} {x}'.format('p', x='q')
'{{}} {}'.format(1)
'{0[a]}'.format({'a': 3})
'{0[1]}'.format([1, 2])
'{:>5}|{:<5}|{:^5}|'.format('a', 'b', 'c')
'{:*^7}'.format('ab')
'{:05d}|{:+d}|{: d}'.format(42, 42, 42)
'{:x} {:X} {:o} {:b} {:#x}'.format(255, 255, 8, 5, 255)
'{:,} {:_}'.format(1234567, 1234567)
'{:,.2f}'.format(1234567.891)
'{:.3f} {:.0f} {:e} {:g} {:%}'.format(3.14159, 2.5, 12345.678, 0.0001, 0.25)
'{:.2}'.format('abc')
'{:10.3}|'.format(3.14159)
'{:5}|{:5}|'.format(3, 'a')
'{!r} {!s}'.format('a', 'b')
'{!r:>6}'.format('a')
'{} {} {}'.format(none, true, [1, 'a'])
'{:d}'.format(true)
'{:c}'.format(233)
'{:^7}'.format(2.5)
'{:08.3f}'.format(-3.14159)
'{:é>4}'.format('x')
'%s %d %r' % ('a', 5, 'b')
'%s' % 'x'
'%s' % [1]
'%(a)s-%(b)d' % {'a': 'x', 'b': 2}
'%5s|%-5s|%05d|%+d' % ('a', 'b', 42, 7)
'%.2f %e %g %x %X %o %%' % (3.14159, 1.5, 1e-5, 255, 255, 8)
'%d' % 3.9
'%*d' % (5, 42)
'%.2s' % 'abc'
'%c%c' % ('a', 98)
'%s %s'|format('a', 2)
'%(x)s'|format(x=1)
'%d items'|format(3)
n is sameas 3
none is sameas none
true is sameas true
1 is sameas true
'upper' is filter
'nope' is filter
'odd' is test
'a.b.c'.partition('.')
'a.b.c'.rpartition('.')
'abc'.partition('x')
'abc'.rpartition('x')
'one two-three'|wordcount
1|nosuch if false else 'fine'
'fine' if true else 1|nosuch
""".strip().split("\n")

TEMPLATES = r"""
{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}
{% for i in l %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }}|{% endfor %}
{% for i in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(i > 1) }}{{ loop.depth }}{% for j in [1] %}{{ loop.depth0 }}{% endfor %}{% endfor %}
{% for i in [] %}x{% else %}empty{% endfor %}
{% for i in missing %}x{% else %}none{% endfor %}
{% for i in l if i > 1 %}{{ i }}{{ loop.last }}{% else %}e{% endfor %}
{% for i in l if i > 10 %}{{ i }}{% else %}e{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
{% for k in d %}{{ k }}{% endfor %}
{% for c in u %}{{ c }}.{% endfor %}
{% for a, (b, c) in [(1, (2, 3))] %}{{ a + b + c }}{% endfor %}
{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% for i in l %}{% for j in l %}{% if j == 1 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% endfor %}
{% set x = 1 %}{% for i in l %}{{ x }}{% set x = x + 1 %}{{ x }} {% endfor %}{{ x }}
{% for i in [1, 2] %}{{ y is defined }}{% set y = 1 %}{% endfor %}{{ y is defined }}
{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}
{% set ns = namespace(a=[]) %}{% for i in l %}{% set ns.a = ns.a + [i * 2] %}{% endfor %}{{ ns.a }}{{ ns.b is defined }}
{% if true %}{% set q = 'in if' %}{% endif %}{{ q }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}
{% set a = 1, 2 %}{{ a }}
{% set a %}x{{ n }}y{% endset %}{{ a | upper }}
{% set a | upper | replace('X', '-') %}x{{ n }}y{% endset %}{{ a }}
{% filter upper %}abc{{ s }}{% endfilter %}
{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}
{% macro m(a, b=2, c='z') %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c='y') }}{{ m() }}{{ m(b=5, a=4) }}
{% macro fib(n) %}{% if n < 2 %}{{ n }}{% else %}{{ fib(n - 1) | int + fib(n - 2) | int }}{% endif %}{% endmacro %}{{ fib(9) }}
{% macro m() %}{{ n }}{{ late }}{% endmacro %}{% set late = 'L' %}{{ m() }}
{% macro m(x) %}{{ x | trim }}{% endmacro %}{{ m('  a ') | upper }}{{ m is callable }}
{% if n > 5 %}a{% elif n > 2 %}b{% elif n > 1 %}c{% else %}d{% endif %}
{% if not l %}a{% elif missing %}b{% else %}c{% endif %}
{{ n, f }}
{% raw %}{{ not }} {% this %}{% endraw %}!
{%- raw -%}  a  {%- endraw -%}  b
{# comment #}a{#- another -#}  b
{# {{ n }} #}x
{{ '}}' }}{{ "%}" }}{{ {'a': {'b': 1}} }}
{{- n -}}  {{- f }}
{% generation %}text {{ n }}{% endgeneration %}.
{% for m in messages %}{{ m.role }}{% endfor %}{{ messages | length }}{{ tools }}{{ documents is none }}
{% for i in l %}{{ i }}{{ ', ' if not loop.last }}{% endfor %}
{% set text = 'a' %}{% set text = text + 'b' %}{{ text }}
{{ people | map(attribute='name') | list | length }}{% for p in people | map(attribute='name') %}{{ p }}{% endfor %}
{% set g = l | map('string') %}{{ g | join }}{{ g | join }}{% if g %}T{% endif %}
{% if l | select('gt', 100) %}a generator is true{% endif %}
{% for x in (1, 2, 3) | reverse %}{{ x }}{% endfor %}
{% if false %}{{ 1|nosuch }}{% else %}ok{% endif %}
{% if true or 1 is nosuch %}ok{% endif %}
{% if false %}{% set x = l|nosuch %}{% elif n is defined %}e{% else %}{{ n|nosuch2 }}{% endif %}
{% if 'from_json' is filter %}{{ s|from_json }}{% else %}{{ s }}{% endif %}
{% if false %}{{ s.nosuchmethod() }}{% endif %}ok
{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{{ m.content|nosuch }}{% endif %}{% endfor %}
{% macro k(x) %}{{ x|safe }}{% endmacro %}{{ k('<') + '<' }}
{% set b %}<{{ n }}>{% endset %}{{ b + '<' }}
{% set b = '<'|safe %}{{ b + '<' }}{{ b ~ '<' }}
{% filter e %}<a>{% endfilter %}
{% for k, v in d|dictsort %}{{ '%s=%s' % (k, v) }};{% endfor %}
{{ '\n<' ~ 'k' ~ '>' ~ (d|tojson|safe) ~ '</' ~ 'k' ~ '>' }}
{{ '\n<' + (d|tojson|safe) + '</k>' }}
{% set parts = s.partition(', ') %}{{ parts[0] }}{{ parts[2] }}
{% macro a(x) %}[{{ b(x) }}]{% endmacro %}{% macro b(x, deep=True) %}{% if x is mapping %}{% for k, v in x|dictsort %}{{ k }}:{{ b(v, deep=deep) }}{% if not loop.last %},{% endif %}{% endfor %}{% elif x is string %}'{{ x }}'{% elif x is boolean %}{{ 'yes' if x else 'no' }}{% elif x is sequence %}{% for i in x %}{{ b(i) }};{% endfor %}{% else %}{{ x }}{% endif %}{% endmacro %}{{ a(deep[0]) }}{{ a(mixed) }}
{% set steps = {512: 'b', 0: 'a', 1024: 'c'} %}{% set ns = namespace(hit=None) %}{% for k, v in steps|dictsort %}{% if ns.hit is none and 600 <= k %}{% set ns.hit = v %}{% endif %}{% endfor %}{{ ns.hit }}{{ steps[0] }}
{% for m in people %}{{ m.name }}{% for o in people[loop.index0 + 1:] %}{% if o.age == m.age %}+{{ o.name }}{% else %}{% break %}{% endif %}{% endfor %};{% endfor %}
{% if not missing is defined %}none{% endif %}{% if not n is none and n is number %}num{% endif %}
{{ '\n' + w | trim + '!' }}{{ '<' + e | default('x', true) + '>' }}{{ missing | default('') | trim | length > 0 }}
{% for p in people if p.tag is defined and p.tag == 'x' %}{% if p.name is defined %}{% set p = p.name %}{% endif %}{{ p }}{% endfor %}
{% set seen = namespace(ids=[]) %}{% for p in people %}{% if p.age not in seen.ids %}{{ p.name }}{% set seen.ids = seen.ids + [p.age] %}{% endif %}{% endfor %}
{% set x = people|selectattr('age', 'gt', 10)|map(attribute='name')|join(', ') %}{{ x }}{{ (people|rejectattr('tag', 'defined')|list)[-1].name }}
{% set text = '<think>a</think>b' %}{% if '</think>' in text %}{{ text.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') }}|{{ text.split('</think>')[-1].lstrip('\n') }}{% endif %}
{% for m in messages[::-1] %}{% set index = (messages|length - 1) - loop.index0 %}{{ index }}{{ m.role }}{% endfor %}
{{ d|tojson(indent=2) }}{{ mixed|tojson(separators=(',', ':')) }}{{ u|tojson(ensure_ascii=true) }}
{{ d|string }}{{ mixed|string }}{{ (l|string)[1:-1] }}{{ '%s' % d }}
{% set t = {'string': 'str', 'integer': 'int'} %}{{ t['string'] if 'string' in t else 'Any' }}{{ t.get('x', 'Any') }}{{ t.get('x') }}
{{ strftime_now('%Y-%m-%d') }}{{ strftime_now('%d %b %Y') }}{{ strftime_now('%B %d, %Y') }}{{ strftime_now('%A %H:%M') }}
{% set a = {'x': {'y': [1, 2]}} %}{{ a.x.y[-1] }}{{ a['x']['y'][0] }}{{ a.x.z is defined }}{{ a.get('q', {}).get('r', 'none') }}
{% if messages[0]['role'] == 'user' and messages|length % 2 == 1 %}odd{% endif %}{% if (messages[0].role == 'user') != (0 % 2 == 0) %}bad{% endif %}
{{ ['a', 'b'] | join('\n- ') | indent(2) }}{{ s.split(',') | map('trim') | list }}{{ [' a ', 'b '] | map('trim') | join('|') }}
{{ 'a' if n is odd else 'b' }}{{ n is divisibleby 3 }}{{ 'x' is in ['x'] }}{{ 5 is ge 4 }}{{ l is sequence and l is not mapping and l is iterable }}
{{ raise_exception('never') if false else 'fine' }}
""".strip().split("\n")

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

FAILING = r"""
{{ 1 + 'a' }}
{{ 'a' + 1 }}
{{ missing.x }}
{{ missing + 1 }}
{{ missing() }}
{{ none.x.y }}
{{ d.nope.deeper }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ 1 < 'a' }}
{{ none < 1 }}
{{ 1 in 'a' }}
{{ 1 in 2 }}
{% for x in 3 %}{% endfor %}
{% for a, b in [1] %}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{{ raise_exception('no') }}
{{ s.index('zzz') }}
{{ 1 | length }}
{{ missing | tojson }}
{{ l.append(1) }}
{{ d.update({}) }}
{{ d.pop('a') }}
{% set d.x = 1 %}
{{ 5() }}
{{ {[1]: 2} }}
{{ range(1000000) }}
{{ 'a'.split('') }}
{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{% endmacro %}{{ m(b=2) }}
{% if %}{% endif %}
{% if true %}
{% endfor %}
{% else %}
{{ 1 + }}
{{ (1 }}
{{ 'a }}
{{ a b }}
{% for x %}{% endfor %}
{% break %}
{{ x is nosuchtest }}
{{ x | nosuchfilter }}
{% nosuchtag %}
{{ f(a=1, 2) }}
{# never closed
{% raw %}x
{{ } }}
{% set 1 = 2 %}
{% set true = 2 %}
{{ [1, 2 }}
{{ l | first | first }}
{{ -'a' }}
{{ people | selectattr('age', 'gt', 'x') | list }}
{% if true %}{{ 1|nosuch }}{% endif %}
{% if false %}{% for x in l %}{{ 1|nosuch }}{% endfor %}{% endif %}
{% for x in [] %}{{ 1|nosuch }}{% endfor %}
{% macro m() %}{{ 1|nosuch }}{% endmacro %}
{{ '{} {}'.format(1) }}
{{ '{'.format(1) }}
{{ '{:d}'.format('a') }}
{{ '{:s}'.format(1) }}
{{ '%d' % 'a' }}
{{ '%s %s' % 'a' }}
{{ '%s' % ('a', 'b') }}
{{ s.nosuchmethod() }}
""".strip().split("\n")


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
