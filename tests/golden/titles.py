"""Product-like texts for the golden files, drawn from the word lists below; nothing is copied from elsewhere.

Takes a seed. Gives the same titles for the same seed, on every machine.
"""

import random

BRANDS = ["Norvik", "Alta Casa", "Brüder Kern", "Hoshino", "Peak&Pine", "Ólafsdóttir", "Lumio", "Quill", "Tarn",
          "Zephyr"]
KINDS = [
    "running shoes", "desk lamp", "espresso machine", "rain jacket", "office chair", "water bottle", "yoga mat",
    "bookshelf", "frying pan", "bluetooth speaker", "garden hose", "baby blanket", "phone case", "cutting board",
    "hiking backpack", "bath towel", "wall clock", "dog bed", "screwdriver set", "storage box", "café table",
    "jalapeño sauce",
]
TRAITS = [
    "waterproof", "foldable", "organic", "lightweight", "heavy-duty", "hand-made", "non-stick", "rechargeable",
    "kids'", "extra-large", "vintage", "dishwasher-safe", "adjustable", "women's", "men's", "ultra-thin",
    "eco-friendly", "anti-slip",
]
MATERIALS = ["stainless steel", "bamboo", "cotton", "merino wool", "oak", "recycled plastic", "leather", "glass",
             "crème linen"]
COLOURS = ["red", "navy blue", "charcoal", "sand", "forest green", "rosé", "white", "черный", "ブルー", "白色"]
SIZES = ["12 oz", "500ml", "3-pack", "size 42", "60x90 cm", '15.6"', "2 x 1.5 m", "XL", "1,000 pcs", "9.5", "40W",
         "¾ inch"]
CLAUSES = [
    "for small kitchens and balconies", "with a two-year warranty", "easy to clean after use", "ships in one box",
    "made for long days outdoors", "fits most standard frames", "includes cable & manual (EN/DE/FR)",
    "not suitable for children under 3", "rated 4.7/5 by 1,284 buyers", "the handle stays cool while the rest gets hot",
    "wash at 30° with similar colours", "choose the size below", "replaces model #A-113", "tested to −20 °C",
]
FRAGMENTS = ["", " ", ".", "XL", "lamp", "42", "—", "é", "洗濯機", "🙂", "usb-c", "N/A", "  oak  ", "!!!", "chair?"]

# Texts that a tokenizer, a truncation or a pooling may get wrong; the last one is longer than any model here reads.
EDGE_TEXTS = [
    "red running shoes",
    "",
    "Crème BRÛLÉE set, 6-pack (glass)",
    "lamp",
    "洗濯機 白色 7kg",
    "men's waterproof rain jacket - navy blue, XL; wash at 30°",
    '15.6" laptop sleeve & 3-pack of ¾ inch screws!!!',
    "   leading and   inner spaces ",
    "naïve café jalapeño 🙂 черный",
    "bamboo cutting board\twith juice groove\nand a handle for small kitchens, dishwasher-safe and easy to clean",
    "find: oak bookshelf",
    " ".join(f"{trait} {kind}" for trait, kind in zip(TRAITS * 2, KINDS * 2)),
]


def titles(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [title(draw) for _ in range(count)]


def title(draw: random.Random) -> str:
    """Mostly one line of a shop; now and then a fragment or a whole description of up to about 300 words."""
    kind = draw.random()
    if kind < 0.04:
        return draw.choice(FRAGMENTS)
    if kind < 0.94:
        return one_line(draw, num_clauses=draw.choice([0, 0, 0, 1, 1, 2, 3]))
    words = " ".join(one_line(draw, num_clauses=8) for _ in range(draw.randint(1, 8))).split()
    return " ".join(words[: draw.randint(30, 300)])


def one_line(draw: random.Random, num_clauses: int) -> str:
    words = draw.sample(TRAITS, draw.randint(0, 2)) + [draw.choice(KINDS)]
    words += [draw.choice(pool) for pool in (MATERIALS, COLOURS, SIZES) if draw.random() < 0.4]
    if draw.random() < 0.5:
        words.insert(0, draw.choice(BRANDS))
    text = ", ".join([" ".join(words)] + draw.sample(CLAUSES, num_clauses))
    return text.title() if draw.random() < 0.3 else text
