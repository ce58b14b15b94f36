"""The JSON record: one case with all its implementations, as measured in one process.

A record is written once, atomically, and validated against ``workflow/schemas/record.schema.json``
when it is written and when it is read. Times are integer nanoseconds in the raw samples and
nanoseconds per call in the summaries. Everything the report says is computed from records.
"""

from apexbench.records.model import (
    BASELINES,
    BESIDE,
    KILLED,
    QUANTITIES,
    SCHEMA_VERSION,
    STATUSES,
    VERDICTS,
    Cell,
    Check,
    Comparison,
    Parity,
    Quantity,
    Record,
    Work,
    verdict,
)
from apexbench.records.store import (
    SCHEMA_PATH,
    dump,
    expected,
    indexes,
    misplaced,
    outdated,
    parse,
    read,
    read_index,
    write,
)
from apexbench.records.text import (
    WRITING,
    canonical,
    digest,
    file_name,
    load_json,
    source_digest,
    sweep,
    write_bytes_atomically,
    write_text_atomically,
)

__all__ = [
    "BASELINES",
    "BESIDE",
    "KILLED",
    "QUANTITIES",
    "SCHEMA_PATH",
    "SCHEMA_VERSION",
    "STATUSES",
    "VERDICTS",
    "WRITING",
    "Cell",
    "Check",
    "Comparison",
    "Parity",
    "Quantity",
    "Record",
    "Work",
    "canonical",
    "digest",
    "dump",
    "expected",
    "file_name",
    "indexes",
    "load_json",
    "misplaced",
    "outdated",
    "parse",
    "read",
    "read_index",
    "source_digest",
    "sweep",
    "verdict",
    "write",
    "write_bytes_atomically",
    "write_text_atomically",
]
