# SPDX-License-Identifier: Apache-2.0
"""Words that may stand behind a number: units with their factors, numbers, things that are counted, and fillers."""

import re
from collections import Counter
from fractions import Fraction

Unit = tuple[Fraction, Counter[str]]

_METRIC = """
m 1 m meter metre; kg 0.001 g gram; m*m*m 0.001 l L liter litre; s 1 s sec second; kg*m/s/s 1 N newton
kg*m*m/s/s 1 J joule; kg*m*m/s/s/s 1 W watt; kg/m/s/s 1 Pa pascal; 1/s 1 Hz hertz; V 1 V volt; A 1 A amp ampere
mol 1 mol mole; cal 1 cal calorie; eV 1 eV; bit 1 bit
"""
_OTHER = """
m 0.0254 inch in; m 0.3048 ft foot feet; m 0.9144 yd yard; m 1609.344 mi mile; s 60 min minute; s 3600 h hr hour
s 86400 day; s 604800 week; month 1 month; month 12 yr year; month 120 decade; month 1200 century
kg 0.45359237 lb pound; kg 0.028349523125 oz ounce; kg 1000 tonne; ton 1 ton
m*m*m 0.003785411784 gal gallon; m*m*m 0.000946352946 qt quart; m*m*m 0.000473176473 pint; m*m*m 0.000001 cc
m*m*m 0.0002365882365 cup; m*m 4046.8564224 acre; m*m 10000 ha hectare; m/s 0.44704 mph; m/s 5/18 kmh kmph kph
bit 8 byte; ohm 1 ohm; degree 1 degree deg; radian 1 radian rad
celsius 1 celsius C; fahrenheit 1 fahrenheit F; kelvin 1 kelvin K
cent 1 cent; cent 100 dollar usd buck; euro 1 euro eur; rupee 1 rupee rs; peso 1 peso; yen 1 yen; am 1 am; pm 1 pm
"""
"""Base units, factor and names. What converts only on some days (months and days, dollars and euros) has its own."""
_PREFIXES = {
    **{"n": "1e-9", "µ": "1e-6", "u": "1e-6", "m": "1e-3", "c": "1e-2", "d": "1e-1", "k": "1e3", "M": "1e6", "G": "1e9"},
    **{"nano": "1e-9", "micro": "1e-6", "milli": "1e-3", "centi": "1e-2", "deci": "1e-1", "kilo": "1e3", "mega": "1e6"},
}


def _entries(table: str) -> list[tuple[str, Unit]]:
    found = []
    for entry in re.split(r"[;\n]", table.strip()):
        bases, factor, *names = entry.split()
        dimension: Counter[str] = Counter()
        for sign, base in re.findall(r"([*/]?)(\w+)", bases):
            dimension[base] += -1 if sign == "/" else base != "1"
        found += [(name, (Fraction(factor), dimension)) for name in names]
    return found


_PREFIXED = {
    prefix + name: (factor * Fraction(size), dimension)
    for name, (factor, dimension) in _entries(_METRIC)
    for prefix, size in _PREFIXES.items()
    if (len(prefix) > 1) == (len(name) > 3)
}
UNITS: dict[str, Unit] = _PREFIXED | dict(_entries(_METRIC)) | dict(_entries(_OTHER))
"""Factor and powers of base units of each name: symbols in their case, words in lower case and in the singular."""

NUMBERS = {
    **{"hundred": r"\cdot10^{2}", "thousand": r"\cdot10^{3}", "million": r"\cdot10^{6}", "billion": r"\cdot10^{9}"},
    **{"trillion": r"\cdot10^{12}", "dozen": r"\cdot12", "percent": r"\%", "percentage": r"\%"},
    **{"factorial": "!", "squared": "^{2}", "cubed": "^{3}"},
}
"""Words that make another number of the one before them."""

GENERIC = frozenset(
    "unit value way total number th st nd rd digit point answer solution result of the in all each apiece altogether "
    "left remaining more long wide tall high deep old away distinct different possible positive".split()
)
"""Words that any counted or measured thing may have."""

THINGS = frozenset(
    """
    time grade place edge side face vertex vertice angle diagonal root zero term factor divisor multiple integer prime
    triangle rectangle circle line segment arc region path route arrangement permutation combination
    possibility outcome subset element function polynomial sequence word letter symbol position move turn step game
    round match group team row column table block tile cube card coin die dice ball marble toy bead stick stone
    people person man men woman women boy girl child children kid baby student pupil teacher adult parent friend guest
    worker employee member player customer passenger patient soldier farmer driver voter senior junior sister
    brother dog cat puppy kitten bird chicken hen duck cow pig sheep goat horse fish rabbit mouse mice rat frog bee ant
    bug insect spider snake turtle monkey elephant lion tiger bear animal pet leg wheel eye head tooth teeth hand finger
    apple orange banana pear peach plum grape cherry berry lemon lime mango melon watermelon pineapple fruit vegetable
    tomato potato carrot onion egg cookie cake cupcake muffin donut pie pizza slice piece sandwich loaf loaves bread
    cracker candy lollipop chocolate meal dish snack drink soda juice water milk coffee tea burger pancake
    flower rose tulip petal tree plant seed leaf leaves bush branch shell seashell rock star balloon sticker
    book page notebook magazine newspaper stamp photo picture painting poster pen pencil crayon marker
    eraser paper sheet ticket coupon gift present prize medal trophy doll truck car bike bicycle bus train plane boat
    ship vehicle tire wheel seat chair desk table bed lamp window door room floor house home building apartment store
    box bag basket bucket barrel bottle can jar glass plate bowl spoon fork knife knives pack packet package carton
    crate case container pot pan tray shelf shelve stack bundle bunch load shirt pant sock shoe hat dress glove coat
    button ribbon rope string wire nail screw bolt brick board pipe bar candle match toothpick straw movie song
    video story test quiz question problem exam lesson class course school vote point goal lap mile trip
    visit call message email post order item copy product penny nickel dime bill
    """.split()
)
"""Things that are counted, in the singular. What stands for a number (pair, score, gross) only where it is counted."""

SHORT_BARE = frozenset("cm mm km kg ft lb hr yr min sec mph kmph kmh deg gal day man men way toy ml mL egg".split())
"""Short words that are read without a text font too, behind a number or a blank: they are hardly a product."""
