"""Checkpoints: directories that are written atomically and verified when they are read.

    checkpoints/<policy_steps>/manifest.json        size and SHA-256 of every file; format; policy_steps; checksum
                               learning/state.json  structure of the learning state, with names in place of tensors
                               learning/tensors.safetensors    the tensors
                               bookkeeping/state.json  times, metrics not yet logged, versions, fingerprint of the run
    checkpoints/chunks/                             data that no longer changes; several checkpoints refer to one file
    checkpoints/names.json                          which checkpoints are `latest` and `best`; checksum

The files of a checkpoint are written to a temporary directory in `checkpoints`, the manifest last, each with fsync. The
directory is then renamed, and the renaming is made durable with fsync. Older checkpoints are removed only after that.
All data is JSON or safetensors, so reading a checkpoint never unpickles. No files are written outside `checkpoints`.
"""

from rlcore.store.checkpoint.chunks import chunks_of as chunks_of
from rlcore.store.checkpoint.chunks import write_chunks as write_chunks
from rlcore.store.checkpoint.names import choose as choose
from rlcore.store.checkpoint.names import find as find
from rlcore.store.checkpoint.names import load_newest as load_newest
from rlcore.store.checkpoint.names import locate as locate
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
