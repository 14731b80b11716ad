"""Checkpoints: directories that are either whole and verified or not there.

    checkpoints/<policy_steps>/manifest.json        every file's size and SHA-256; format; policy_steps; its own SHA-256
                               learning/state.json  nested state, tensors replaced by their names
                               learning/tensors.safetensors
                               bookkeeping/state.json  times, metrics not yet logged, versions, the fingerprint
    checkpoints/chunks/                             what never changes again: written once, referred to by manifests
    checkpoints/names.json                          which are `latest` and `best`; its own SHA-256

Committed by: files in a directory beside the final name, each fsynced; manifest, fsync; rename; fsync of the parent;
only then are older ones removed. Reading never unpickles: JSON and safetensors. No other folder plays a part, not even
TMPDIR.
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
