"""Checkpoints: directories that are written atomically and verified when they are read.

    checkpoints/<policy_steps>/manifest.json        every file's size and SHA-256; format; policy_steps; its own SHA-256
                               learning/state.json  nested state, tensors replaced by their names
                               learning/tensors.safetensors
                               bookkeeping/state.json  times, metrics not yet logged, versions, the fingerprint
    checkpoints/chunks/                             data that no longer changes: written once, referred to by manifests
    checkpoints/names.json                          names of the `latest` and `best` checkpoint; its own SHA-256

Order of writing: files in a temporary directory next to the final one, each with fsync; manifest, fsync; rename; fsync
of the parent. Older checkpoints are removed only after that. Reading never unpickles; all data is JSON or safetensors.
No other folder is used, not even TMPDIR.
"""

from rlcore.store.checkpoint.chunks import chunks_of as chunks_of
from rlcore.store.checkpoint.chunks import write_chunks as write_chunks
from rlcore.store.checkpoint.names import choose as choose
from rlcore.store.checkpoint.names import find as find
from rlcore.store.checkpoint.names import load_newest as load_newest
from rlcore.store.checkpoint.names import name_best as name_best
from rlcore.store.checkpoint.names import newest_bookkeeping as newest_bookkeeping
from rlcore.store.checkpoint.names import newest_first as newest_first
from rlcore.store.checkpoint.names import newest_good as newest_good
from rlcore.store.checkpoint.names import policy_steps as policy_steps
from rlcore.store.checkpoint.names import prune as prune
from rlcore.store.checkpoint.names import resolve as resolve
from rlcore.store.checkpoint.reading import damage as damage
from rlcore.store.checkpoint.reading import load as load
from rlcore.store.checkpoint.reading import manifest as manifest
from rlcore.store.checkpoint.writing import save as save
