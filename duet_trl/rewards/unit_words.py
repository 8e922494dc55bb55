# SPDX-License-Identifier: Apache-2.0
"""Words that may follow a number: units with their factors, numbers, things that are counted, and fillers."""

import re
from collections import Counter
from fractions import Fraction

Unit = tuple[Fraction, Counter[str]]

_METRIC = """
m 1 m meter metre; kg 0.001 g gram; m*m*m 0.001 l L liter litre; s 1 s sec second; kg*m/s/s 1 N newton
kg*m*m/s/s 1 J joule; kg*m*m/s/s/s 1 W watt; kg/m/s/s 1 Pa pascal; 1/s 1 Hz hertz; V 1 V volt; A 1 A amp ampere
mol 1 mol mole; kg*m*m/s/s 3600 Wh; cal 1 cal calorie; eV 1 eV; bit 1 bit
"""
_OTHER = """
m 0.0254 inch in; m 0.3048 ft foot feet; m 0.9144 yd yard; m 1609.344 mi mile; s 60 min minute; s 3600 h hr hour
s 86400 day; s 604800 week; month 1 month; month 12 yr year; month 120 decade; month 1200 century
kg 0.45359237 lb pound; kg 0.028349523125 oz ounce; kg 1000 tonne; ton 1 ton
m*m*m 0.003785411784 gal gallon; m*m*m 0.000946352946 qt quart; m*m*m 0.000473176473 pint; m*m*m 0.000001 cc
m*m*m 0.0002365882365 cup; m*m 4046.8564224 acre; m*m 10000 ha hectare; m/s 0.44704 mph; m/s 5/18 kmh kmph kph
bit 8 byte; ohm 1 ohm; degree 1 degree deg; radian 1 radian rad
celsius 1 celsius C; fahrenheit 1 fahrenheit F; kelvin 1 kelvin K
cent 1 cent; cent 100 dollar usd buck; euro 1 euro eur; rupee 1 rupee rs; peso 1 peso; yen 1 yen
sterling 1 sterling; am 1 am; pm 1 pm
"""
"""Base units, factor and names. Units without a fixed rate (months and days, dollars and euros) have their own."""
_POWERS = {-9: "n nano", -6: "µ u micro", -3: "m milli", -2: "c centi", -1: "d deci", 3: "k kilo", 6: "M mega"}
_PREFIXES = {prefix: Fraction(10) ** power for power, names in _POWERS.items() for prefix in names.split()}


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
    prefix + name: (factor * size, dimension)
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
    adult angle animal ant apartment apple arc arrangement baby bag ball balloon banana bar barrel basket bead
    bear bed bee berry bicycle bike bill bird block board boat bolt book bottle bowl box boy branch bread brick
    brother bucket bug building bunch bundle burger bus bush button cake call can candle candy car card carrot
    carton case cat chair cherry chicken child children chocolate circle class coat coffee coin column combination
    container cookie copy coupon course cow cracker crate crayon cube cupcake customer desk diagonal dice die dime
    dish divisor dog doll donut door dress drink driver duck edge egg element elephant email employee eraser exam
    eye face factor farmer finger fish floor flower fork friend frog fruit function game gift girl glass glove
    goal goat grade grape group guest hand hat head hen home horse house insect integer item jar juice junior kid
    kitten knife knives lamp lap leaf leaves leg lemon lesson letter lime line lion load loaf loaves lollipop
    magazine man mango marble marker match meal medal melon member men message mice mile milk monkey mouse move
    movie muffin multiple nail newspaper nickel notebook onion orange order outcome pack package packet page
    painting pan pancake pant paper parent passenger path patient peach pear pen pencil penny people permutation
    person pet petal photo picture pie piece pig pineapple pipe pizza place plane plant plate player plum point
    polynomial position possibility post poster pot potato present prime prize problem product pupil puppy
    question quiz rabbit rat rectangle region ribbon rock room root rope rose round route row sandwich school
    screw seashell seat seed segment senior sequence sheep sheet shelf shell shelve ship shirt shoe side sister
    slice snack snake sock soda soldier song spider spoon stack stamp star step stick sticker stone store story
    straw string student subset symbol table tea teacher team teeth term test ticket tiger tile time tire tomato
    tooth toothpick toy train tray tree triangle trip trophy truck tulip turn turtle vegetable vehicle vertex
    vertice video visit vote voter water watermelon wheel window wire woman women word worker zero
    """.split()
)
"""Things that are counted, in the singular. Those that mean a number (pair, score, gross) only where counted."""

SHORT_BARE = frozenset("cm mm km kg ft lb hr yr min sec mph kmph kmh deg gal day man men way toy ml mL egg".split())
"""Short words that are read without a text font too, after a number or a blank: they are rarely a product."""
