#!/usr/bin/env python3
"""Small Parquet files by pyarrow, and their rows as JSON lines: python3 tests/golden/make_parquet.py (needs pyarrow)."""
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "parquet")
ROWS = [{"text": f"row {i}: größe \"x\"\n船" if i % 3 else "the same text", "n": i * i - 5 if i % 5 else None, "score": i / 4, "good": i % 3 == 0,
         "tokens": [f"w{k}" for k in range(i % 4)] if i % 7 else None, "messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": None}][: i % 3]}
        for i in range(40)]
FILES = {"snappy": dict(compression="snappy", row_group_size=16), "zstd_v2": dict(compression="zstd", data_page_version="2.0", use_dictionary=False),
         "gzip_pages": dict(compression="gzip", data_page_size=64, write_batch_size=4), "none_v2": dict(compression="none", data_page_version="2.0"),
         "lz4": dict(compression="lz4"), "refused_delta": dict(use_dictionary=False, column_encoding={"n": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY"})}

os.makedirs(HERE, exist_ok=True)
table = pa.Table.from_pylist(ROWS)
for name, options in FILES.items(): pq.write_table(table, f"{HERE}/{name}.parquet", store_schema=False, write_statistics=name == "snappy", **options)
with open(f"{HERE}/rows.jsonl", "w", encoding="utf-8") as f:
    for row in ROWS: f.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")).replace(".0,", ",") + "\n")
