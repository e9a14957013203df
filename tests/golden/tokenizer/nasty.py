"""nasty.py - text that tokenizers get wrong: generated lines, the same for a given seed.

    rng = random.Random(1)
    line = nasty_line(rng, ["<s>", "[MASK]"])      # bytes; some lines are not UTF-8
"""
import glob
import os

WORDS = {
    "english": "the of and to in a is that it was for on are as with his they at be this from I have or by one "
               "had not but what all were when we there can an your which their said if do will each about how "
               "up out them then she many some so these would other into has more her two like him see time "
               "could no make than first been its who now people my made over did down only way find use may "
               "water long little very after words called just where most know don't it's I'll we've they're "
               "he'd isn't Tokenization internationalization counterrevolutionary".split(),
    "german": "der die und in den von zu das mit sich des auf für ist im dem nicht ein Die eine als auch es an "
              "werden aus er hat daß sie nach wird bei Straße Größe Übung Donaudampfschifffahrt weiß".split(),
    "french": "le de un être et à il avoir ne je son que se qui ce dans en du elle au l'été n'est d'où ça où "
              "garçon cœur naïve Noël œuvre aujourd'hui".split(),
    "russian": "и в не на я быть он с что а по это она этот к но они мы весь который Москва также ещё".split(),
    "greek": "και το να είναι του της με που Αθήνα λόγος ΣΊΣΥΦΟΣ άνθρωπος".split(),
    "arabic": "في من على إلى أن هذا كان التي الذي مع عن السَّلَامُ عَلَيْكُمْ مرحبا ١٢٣ ٤٥٦".split(),
    "hebrew": "של את על לא הוא היא שָׁלוֹם עוֹלָם בְּרֵאשִׁית ירושלים".split(),
    "hindi": "के है में की से को पर नमस्ते दुनिया क्षत्रिय हिन्दी १२३".split(),
    "thai": "สวัสดี ครับ ภาษาไทย กรุงเทพมหานคร ๑๒๓ ไม่ใช่ ที่".split(),
    "chinese": "的 一 是 不 了 人 我 在 有 他 这 中文 你好世界 机器学习 語言模型 東京 龍龜 𠮷野家 㐀".split(),
    "japanese": "こんにちは カタカナ ﾊﾝｶｸ 日本語 が ガ です。 「引用」 ー".split(),
    "korean": "안녕하세요 한국어 서울 각 값 한국".split(),
    "other": "ქართული հայերեն አማርኛ ᏣᎳᎩ ភាសាខ្មែរ မြန်မာ தமிழ் తెలుగు বাংলা ᠮᠣᠩᠭᠣᠯ ߒߞߏ 𐍈 𝒳𝓎𝔷 ﬁne ﬂow ﷺ ㎏ ½ ⅷ Ⅻ ² "
             "ǅ ŉ İstanbul ı ſ K Å ẞ ΐ".split(),
}
EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "❤️", "1️⃣", "🧑🏿‍🚀", "☃", "✔️", "🤷‍♀️", "\U0001fae8", "\U0001f9ff"]
MARKS = ["\u0301", "\u0308", "\u0323", "\u0327", "\u034f", "\u0489", "\u20dd", "\u0345", "\u05b8", "\u064e", "\u093c",
         "\u3099", "\u0e49", "\u1ab0", "\ufe0f", "\ufe20"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", " \n", "\n ", "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028",
          "\u2029", "\u0085", "\u1680", "\u202f", "\u205f", "\ufeff", "\x0b", "\x0c", "\u180e", "\u2581", "\u2581\u2581"]
CONTROL = [chr(c) for c in list(range(32)) + list(range(127, 160))] + ["\u200c", "\u200d", "\u200e", "\u202e", "\u2066",
           "\ufff9", "\U000e0001", "\U000e0041", "\ue000", "\ufffe", "\uffff", "\U0010ffff", "\ufffd", "\u00ad"]
PUNCT = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["…", "—", "“", "”", "‘", "’", "«", "»", "¿", "¡", "、", "。", "！", "？", "·", "٪",
         "‽", "₿", "€", "×", "√", "∑", "→", "■", "©", "™", "°", "´", "¨", "^^", "...", "!!!", "--", "://", "==", "!=", "->", "\\n"]
APOSTROPHES = ["'s", "'S", "'t", "'re", "'RE", "'Ve", "'ll", "'LL", "'d", "'m", "'ſ", "’s", "'", "''", "'sam", "'lL", "'l", "'v",
               "'r", " 's", "'K"]
BAD_BYTES = [b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80", b"\xfe",
             b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xe2\x28\xa1", b"\xf8\x88\x80\x80\x80", b"\xc3\xc3\xa9", b"\xf0\x9f\x98\x80\xf0\x9f"]


def code_lines(limit=4000):
    """Lines of the Python standard library, as code."""
    lines = []
    for name in ("argparse", "ast", "asyncio/base_events", "collections/__init__", "decimal", "difflib", "inspect", "json/decoder",
                 "logging/__init__", "os", "pickle", "re/_parser", "ssl", "subprocess", "tarfile", "typing", "unittest/mock"):
        path = os.path.join(os.path.dirname(os.__file__), name + ".py")
        for found in glob.glob(path):
            with open(found, encoding="utf-8") as f:
                lines += f.read().split("\n")
    return lines[:limit] if limit else lines


def words(rng, count, language=None):
    """Some words of one language, or of a mixture."""
    pick = WORDS[language] if language else sum(WORDS.values(), [])
    return " ".join(rng.choice(pick) for _ in range(count))


def random_point(rng):
    while True:
        top = rng.choice((0x80, 0x250, 0x800, 0x3000, 0x10000, 0x20000, 0x110000))
        point = rng.randrange(top)
        if not 0xD800 <= point < 0xE000:
            return chr(point)


def long_word(rng):
    kind = rng.randrange(6)
    n = rng.choice((30, 64, 100, 150, 300, 1000)) if rng.random() < 0.9 else 5000
    if kind == 0:
        return rng.choice("aAzé中ह1 _-=.") * n
    if kind == 1:
        return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(n))
    if kind == 2:
        return "".join(rng.choice("0123456789") for _ in range(n))
    if kind == 3:
        return "".join(rng.choice("ab") for _ in range(n))
    if kind == 4:
        return "".join(random_point(rng) for _ in range(n // 4))
    return "".join(rng.choice("abcXYZ019+/") for _ in range(n)) + "=="


def fragment(rng, specials, code):
    kind = rng.randrange(20)
    if kind < 4:
        return words(rng, rng.randrange(1, 8), rng.choice(list(WORDS)))
    if kind == 4:
        return rng.choice(EMOJI)
    if kind == 5:
        return rng.choice("aeinouAEyह中かا") + "".join(rng.choice(MARKS) for _ in range(rng.randrange(1, 4)))
    if kind in (6, 7):
        return "".join(rng.choice(SPACES) for _ in range(rng.randrange(1, 5)))
    if kind == 8:
        return rng.choice(CONTROL)
    if kind in (9, 10):
        return "".join(rng.choice(PUNCT) for _ in range(rng.randrange(1, 4)))
    if kind == 11:
        return rng.choice(("I", "we", "x", "ES", "")) + rng.choice(APOSTROPHES)
    if kind == 12:
        return str(rng.randrange(10 ** rng.randrange(1, 12))) + rng.choice(("", ".5", ",000", "%", "kg", "²", "½"))
    if kind == 13:
        return rng.choice(specials) if specials else ""
    if kind == 14:
        token = rng.choice(specials) if specials else "<s>"
        return rng.choice((token[:-1], token[1:], token.lower(), token.upper(), " " + token + " ", "x" + token, token + "y",
                           token + token, token[:2]))
    if kind == 15:
        return "".join(random_point(rng) for _ in range(rng.randrange(1, 6)))
    if kind == 16:
        return rng.choice(code)
    if kind == 17:
        return " " * rng.choice((1, 2, 3, 4, 7, 8, 12, 16, 31)) if rng.random() < 0.7 else rng.choice("\n\t\r") * rng.randrange(1, 9)
    if kind == 18:
        return rng.choice(("http://example.com/a?b=c&d=%20e", "<div class=\"x\">", "foo_bar2Baz", "C++", "#!/bin/sh", "a@b.co", "{{x}}",
                           "<0x0A>", "<0xE4>", "▁", "Ġ", "##ing", "Ċ", "Â", "</w>"))
    return long_word(rng) if rng.random() < 0.15 else rng.choice(WORDS["english"])


def nasty_line(rng, specials, code):
    """One line as bytes."""
    if rng.random() < 0.15:
        return rng.choice(code).encode()
    parts = [fragment(rng, specials, code) for _ in range(rng.choice((1, 1, 2, 3, 4, 6, 9)))]
    data = rng.choice(("", " ", "")).join(parts).encode("utf-8", "replace")
    if rng.random() < 0.06:
        at = rng.randrange(len(data) + 1)
        data = data[:at] + rng.choice(BAD_BYTES) + data[at:]
    return data
