"""Writes the two small Parquet files beside it, in the columns of Amazon's ESCI set. Needs pyarrow 26.

Every column of the products is packed in another way, and the examples have pages of the second version, so that one
test reads them all. The texts are made up.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent

PRODUCTS = {
    "product_id": ["B01", "B02", "B01", "B03", "B02"],
    "product_title": ["Oak desk, 120 cm", "Desk lamp", "オーク机", "Chair", "Desk lamp again"],
    "product_description": ["Solid oak.\nOiled.", None, None, "<p>For a desk</p>", None],
    "product_bullet_point": ["two drawers", None, None, None, None],
    "product_brand": ["Nordwood", "", None, None, "Lumo"],
    "product_color": ["oak", "black", None, None, None],
    "product_locale": ["us", "us", "jp", "us", "us"],
}
PACKED = {
    "product_id": "snappy",
    "product_title": "gzip",
    "product_description": "zstd",
    "product_bullet_point": "none",
    "product_brand": "zstd",
    "product_color": "snappy",
    "product_locale": "gzip",
}
EXAMPLES = [
    (0, "oak desk", 7, "B01", "us", "E", 1, 1, "train"),
    (1, "oak desk", 7, "B02", "us", "C", 1, 1, "train"),
    (2, "oak desk", 7, "B03", "us", "S", 0, 1, "train"),
    (3, "机", 8, "B01", "jp", "E", 1, 1, "train"),
    (4, "lamp", 9, "B02", "us", "E", 1, 1, "test"),
    (5, "lamp", 9, "B03", "us", "I", 1, 1, "test"),
    (6, "lamp", 9, "B99", "us", "E", 1, 1, "test"),
    (7, "lamp", 9, "B01", "us", "X", 1, 1, "test"),
    (8, "lamp", 9, "B02", "us", "E", 1, 1, "test"),
]
NAMES = "example_id query query_id product_id product_locale esci_label small_version large_version split".split()

products = HERE / "shopping_queries_dataset_products.parquet"
pq.write_table(pa.table(PRODUCTS), products, compression=PACKED, row_group_size=3)
examples = pa.table({name: list(column) for name, column in zip(NAMES, zip(*EXAMPLES))})
path = HERE / "shopping_queries_dataset_examples.parquet"
pq.write_table(examples, path, data_page_version="2.0", compression="zstd", row_group_size=5)
