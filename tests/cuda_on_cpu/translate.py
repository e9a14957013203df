#!/usr/bin/env python3
"""Translates CUDA to C++ for the CPU (README.md): translate.py FILE... --root SRC --to FOLDER

    kernel<T><<<g, b, s>>>(x)                 cuda_cpu::launch(kernel<T>, g, b, s)(x)
    __shared__ float a[4], b;                 static float a[4], b; cuda_cpu::shared(a, "a"); ...
    extern __shared__ char pool[];            static char *const pool = (char *)cuda_cpu::pool;
    asm volatile("op.x {%0}, [%1], 16;" ...)  ptx::op_x(out, in, 16)

Lines keep their numbers, and #line says which file they are of. A .cu becomes a .cpp.
"""
import os
import re
import sys

CLOSES = {"(": ")", "[": "]", "{": "}"}
# Blocks of several instructions, by the one that they are about and how many operands they have in registers. Macros name what an operand
# does not: `c`, `kind`, `turned` of attention_wgmma.cuh.
BLOCKS = [("mbarrier.try_wait.parity", 2, "mbarrier_wait_parity({0}, {1})"),
          ("wgmma.mma_async.sync.aligned.m64n64k16", 6, "wgmma_m64n64k16(c, kind, turned, {0}, {1}, {2}, {3}, {4}, {5})"),
          ("wgmma.mma_async.sync.aligned.m64n64k16", 3, "wgmma_m64n64k16_shared(c, kind, turned, {0}, {1}, {2})"),
          ("wgmma.mma_async.sync.aligned.m64n128k16", 6, "wgmma_m64n128k16(c, kind, {0}, {1}, {2}, {3}, {4}, {5})"),
          ("cvt.rn.f16x2.e4m3x2 %0, high", 2, "cvt_rn_f16x2_e4m3x2({0}, (uint16_t)({1} >> 16))"),
          ("mapa.shared::cluster", None, "unsupported()"), ("wgmma.", None, "unsupported()")]


def skip_string(text, at):
    quote = text[at]
    at += 1
    while text[at] != quote:
        at += 2 if text[at] == "\\" else 1
    return at + 1


def blank_comments(text):
    """Comments as spaces of the same size, so that nothing in them is translated."""
    out, at = [], 0
    while at < len(text):
        if text.startswith("//", at) or text.startswith("/*", at):
            line = text[at + 1] == "/"
            end = text.find("\n" if line else "*/", at + 2)
            end = len(text) if end < 0 else end + (0 if line else 2)
            out.append(re.sub(r"[^\n\\]", " ", text[at:end]))
            at = end
        elif text[at] == '"' or (text[at] == "'" and not text[at - 1].isalnum()):
            end = skip_string(text, at)
            out.append(text[at:end])
            at = end
        else:
            out.append(text[at])
            at += 1
    return "".join(out)


def closing(text, at):
    """The place behind the bracket that closes the one at `at`."""
    close, depth = CLOSES[text[at]], 0
    opened = text[at]
    while True:
        if text[at] == '"':
            at = skip_string(text, at)
            continue
        depth += (text[at] == opened) - (text[at] == close)
        at += 1
        if depth == 0:
            return at


def split(text, separator):
    """`text` at separators that no bracket or string holds."""
    parts, begin, at = [], 0, 0
    while at < len(text):
        if text[at] == '"':
            at = skip_string(text, at)
        elif text[at] in CLOSES:
            at = closing(text, at)
        elif text[at] == separator:
            parts.append(text[begin:at])
            begin = at = at + 1
        else:
            at += 1
    return parts + [text[begin:]]


def operands(section):
    found = []
    for part in split(section, ","):
        match = re.match(r'\s*"[^"]*"\s*\((.*)\)\s*$', part, re.S)
        if match:
            found.append(" ".join(match.group(1).replace("\\\n", " ").split()))
    return found


def instruction(template, values):
    """The call for one instruction: operands in the order in which PTX has them."""
    opcode, _, rest = template.strip().rstrip(";").partition(" ")
    name = re.sub(r"\W+", "_", opcode)
    arguments = []
    for word in re.findall(r"%%[\w.]+|%\d+|[\w.]+", rest):
        if word.startswith("%%"):
            arguments.append("sreg_" + word[2:].replace(".", "_"))
        elif word.startswith("%"):
            arguments.append("(" + values[int(word[1:])] + ")")
        elif word != "_":
            arguments.append(word)
    return "ptx::%s(%s)" % (name, ", ".join(arguments))


def assembly(body, where):
    sections = split(body, ":")
    template = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', sections[0])).replace("\\n", "\n").strip()
    values = [o for section in sections[1:3] for o in operands(section)]
    if not template:
        return "(void)0"
    if template.startswith("{"):
        for begin, count, call in BLOCKS:
            if begin in template and count in (None, len(values)):
                return "ptx::" + call.format(*("(%s)" % v for v in values))
        sys.exit("%s: no instruction is known in\n%s" % (where, template))
    calls = [instruction(t, values) for t in template.split(";") if t.strip()]
    return "(%s)" % ", ".join(calls)


def translate_assembly(text, where):
    out, at = [], 0
    for match in re.finditer(r"\basm\b(\s+volatile)?\s*\(", text):
        if match.start() < at:
            continue
        end = closing(text, match.end() - 1)
        old = text[match.start():end]
        new = assembly(text[match.end():end - 1], where)
        in_macro = "\\\n" in old
        out += [text[at:match.start()], new, ("\\\n" if in_macro else "\n") * old.count("\n")]
        at = end
    return "".join(out) + text[at:]


def kernel_before(text, at):
    """Where the name of the kernel before `at` begins."""
    end = at
    while text[at - 1].isspace():
        at -= 1
    if text[at - 1] == ">":
        depth = 0
        while True:
            at -= 1
            depth += (text[at] == ">") - (text[at] == "<")
            if depth == 0:
                break
    while re.match(r"[\w.:]", text[at - 1]):
        at -= 1
    return at, text[at:end]


def translate_launches(text):
    while True:
        at = text.find("<<<")
        if at < 0:
            return text
        end = text.index(">>>", at)
        begin, name = kernel_before(text, at)
        text = "%scuda_cpu::launch(%s, %s)%s" % (text[:begin], name, text[at + 3:end], text[end + 3:])


def translate_shared(text):
    def dynamic(match):
        kind = match.group(1).strip()
        return "[[maybe_unused]] static %s *const %s = (%s *)(void *)cuda_cpu::pool;" % (kind, match.group(2), kind)

    text = re.sub(r"\bextern\s+__shared__\s+(?:__align__\(\d+\)\s+)?([\w ]+?)\s*\b(\w+)\[\];", dynamic, text)

    def static(match):
        names = [re.search(r"(\w+)\s*(?:\[.*\])?\s*$", part, re.S).group(1) for part in commas(match.group(1))]
        notes = " ".join('cuda_cpu::shared(&%s, sizeof %s, "%s");' % (n, n, n) for n in names)
        return "static %s; %s" % (match.group(1), notes)

    return re.sub(r"\b__shared__\s+([^;]+);", static, text)


def commas(declaration):
    """The declared names: a type's own commas stand in angle brackets."""
    flat = re.sub(r"<[^<>;]*>", lambda m: "_" * len(m.group()), declaration)
    parts, begin = [], 0
    for part in split(flat, ","):
        parts.append(declaration[begin:begin + len(part)])
        begin += len(part) + 1
    return parts


def translate(path, root, to):
    name = os.path.relpath(path, root)
    with open(path) as file:
        text = blank_comments(file.read())
    text = translate_shared(translate_launches(translate_assembly(text, path)))
    target = os.path.join(to, re.sub(r"\.cu$", ".cpp", name))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    text = '#line 1 "src/%s"\n%s' % (name, text)
    if os.path.exists(target):
        with open(target) as file:
            if file.read() == text:
                return
    with open(target, "w") as file:
        file.write(text)


def main():
    arguments = sys.argv[1:]
    root = arguments[arguments.index("--root") + 1]
    to = arguments[arguments.index("--to") + 1]
    for path in arguments[:arguments.index("--root")]:
        translate(path, root, to)


main()
