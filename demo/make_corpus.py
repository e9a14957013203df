#!/usr/bin/env python3
"""make_corpus.py > corpus.txt - the demo's text: original sentences about ships, cargo and the load line.

A small grammar written for this project makes logbook pages, letters, lessons and harbour talk. The same script
always makes the same bytes: it brings its own random numbers, so that no version of Python changes them.
"""
import re
import sys

SIZE = 130_000  # bytes, about


class Dice:
    """A linear congruential generator; the high bits are used."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % n

    def pick(self, items):
        return items[self.below(len(items))]


# {name} is replaced by one of the phrases of that name, again and again, until nothing is left to replace.
GRAMMAR = {
    "ship": ["Patient Anna", "Grey Heron", "Northern Lark", "Good Measure", "Mary of Leith", "Blue Lantern",
             "Honest Weight", "Evening Star", "Two Brothers", "Quiet Hour"],
    "kind": ["barque", "schooner", "brig", "steamer", "collier", "ketch", "lugger"],
    "port": ["Whitby", "Leith", "Bergen", "Lisbon", "Hull", "Riga", "Cork", "Malmo", "Cardiff", "Dundee"],
    "person": ["the master", "the mate", "the boatswain", "the carpenter", "the cook", "the harbour master",
               "the surveyor", "the owner's clerk", "the pilot", "the youngest hand"],
    "cargo": ["coal", "salt", "timber", "grain", "iron rails", "wool", "slate", "herring in barrels", "flax",
              "bricks", "copper ore", "machine parts"],
    "tons": ["forty", "sixty", "ninety", "a hundred and ten", "two hundred", "three hundred and fifty"],
    "number": ["two", "three", "four", "five", "six", "seven", "nine", "twelve"],
    "wind": ["a fresh wind from the north", "a light breeze from the west", "hardly any wind", "half a gale",
             "a steady wind on the quarter", "squalls from the south-west", "fog and no wind at all"],
    "sea": ["a long swell", "a short grey sea", "smooth water", "a heavy cross sea", "small waves and white caps"],
    "colour": ["green", "grey", "dark", "pale", "silver", "brown"],
    "time": ["before dawn", "at noon", "in the first watch", "at the turn of the tide", "late in the evening",
             "an hour after sunrise", "in the middle watch"],
    "part": ["the hold", "the fore hatch", "the after peak", "the lower deck", "the bilge", "the chart room"],
    "work": ["trimmed the cargo", "sounded the well", "reefed the topsails", "mended the main sheet",
             "read the marks fore and aft", "counted the barrels twice", "swept the hatch coamings",
             "shifted the ballast", "wrote up the book"],
    "saying": ["A ship that knows her line comes home", "The sea forgives nobody who cannot count",
               "First the plan, then the cargo", "What is not written down is not on board",
               "Leave room for the wave you have not met", "A full hold is not a safe hold",
               "Weigh twice and sail once", "The mark does not argue"],

    "log": ["{wind_up}, {sea}. {person_up} {work} {time}.",
            "Made {number} knots with {wind}. {person_up} {work}.",
            "At anchor off {port}. {person_up} {work} and {person} {work}.",
            "Took in {tons} tons of {cargo} at {port}. The mark is {number} inches above the water.",
            "{time_up} we saw the lights of {port}. {sea_up} and {wind}.",
            "Found a little water in {part}. {person_up} {work}, and then it was dry.",
            "Nothing to report but {sea} and {wind}."],
    "tale": ["The {kind} {ship} lay in {port} and waited for {cargo}.",
             "{person_up} of the {ship} looked at the {colour} water and said nothing for a while.",
             "Nobody in {port} had ever seen a {kind} so deep in the water.",
             "They carried {tons} tons of {cargo} on board, and with every ton the {ship} sank a little deeper.",
             "When the mark touched the {colour} water, {person} raised a hand and the loading stopped.",
             "{time_up} the {ship} left {port} with {wind}.",
             "There was still room in {part}, but there was no room left under the line.",
             "On the second day they met {sea} and {wind}, and the {ship} rose to it like a bird.",
             "The other {kind} had loaded {tons} tons more, and she was never seen again."],
    "lesson": ["A load line is a mark on the side of a ship. It says how deep she may be loaded.",
               "In summer a ship may lie deeper than in winter, because the winter sea is rougher.",
               "Fresh water carries less than salt water, so there is a line for each.",
               "If you want to take {cargo} on board, you must first know where it will lie and for how long.",
               "Heavy things go low and light things go high. Put the {cargo} low.",
               "What is used first is stowed last. What is used last is stowed first.",
               "Two things that are never needed at the same time may have the same place.",
               "The plan is made on paper, where a mistake costs nothing.",
               "{saying}. So {person} says, and {person} agrees."],
    "talk": ["\"How much can she take?\" asked {person}. \"{tons_up} tons and not one more,\" said {person}.",
             "\"Is there room for the {cargo}?\" \"There is room in {part}, but not under the mark.\"",
             "\"{saying},\" said {person}.",
             "\"What does the book say?\" \"The book says {tons} tons.\" \"Then we believe the book.\"",
             "\"The wind is fair for {port},\" said {person}. \"Then we sail {time},\" said {person}.",
             "\"Who counted the {cargo}?\" \"I did, and then {person} counted it again.\""],
    "letter": ["We have {tons} tons of {cargo} waiting for you in {port}.",
               "Please send word when the {ship} is ready to load.",
               "The {kind} {ship} arrived {time} with {cargo} and all hands well.",
               "We ask you not to load her deeper than the mark, whatever {person} may say.",
               "The weather in {port} has been {colour} and cold, with {wind}.",
               "We paid for {number} barrels and received {number}, and we should like to know why."],
}


def fill(text, dice):
    """Replace every {name}; {name_up} begins with a capital letter."""
    while True:
        match = re.search(r"\{(\w+?)(_up)?\}", text)
        if not match: return text
        phrase = fill(dice.pick(GRAMMAR[match.group(1)]), dice)
        if match.group(2): phrase = phrase[0].upper() + phrase[1:]
        text = text[:match.start()] + phrase + text[match.end():]


def lines(kind, count, dice):
    """`count` different sentences of a kind, in any order."""
    left = list(GRAMMAR[kind])
    return [fill(left.pop(dice.below(len(left))), dice) for _ in range(min(count, len(left)))]


def page(dice, day):
    """One short page of some kind."""
    kind = dice.pick(["log", "log", "tale", "tale", "lesson", "talk", "letter"])
    if kind == "log":
        return fill("Log of the {ship}, day %d. " % day, dice) + " ".join(lines("log", 3 + dice.below(3), dice))
    if kind == "letter":
        return fill("To {person} of the {ship}. ", dice) + " ".join(lines("letter", 3, dice)) + " Yours truly."
    if kind == "talk":
        return "\n".join(lines("talk", 2 + dice.below(3), dice))
    return " ".join(lines(kind, 4 + dice.below(3), dice))


def main():
    dice, out, size, day = Dice(1876), [], 0, 1
    while size < SIZE:
        out.append(page(dice, day) + "\n\n")
        size, day = size + len(out[-1].encode()), day + 1
    sys.stdout.write("".join(out))


if __name__ == "__main__":
    main()
