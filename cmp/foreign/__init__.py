"""Other systems' logs: any dataframe, VW's decision-service JSON, Open Bandit Pipeline's dict, lines of JSON."""

from cmp.foreign.dsjson import read_dsjson
from cmp.foreign.frames import from_frame
from cmp.foreign.jsonl import read_jsonl
from cmp.foreign.logs import ForeignLog
from cmp.foreign.obp import read_obp
from cmp.foreign.problems import ForeignLogError

__all__ = ["ForeignLog", "ForeignLogError", "from_frame", "read_dsjson", "read_jsonl", "read_obp"]
