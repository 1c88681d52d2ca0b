"""Dumps that do not lie in a local directory: object stores, archives, the disks of a cluster's nodes.

Every rank is summarised where its bytes are read (`ovf._core.summarize`), and the small summaries are reduced here
(`ovf._core.reduce`): the same core, so the report is the same byte for byte. The rooms, each naming only those before
it:

    errors    what a file system or archive raised, as one clear line
    step      steps and ranks as a list of names lays them out
    source    the protocol of a place, and the two steps of an analysis over it
    files     files that can be read at random; memory and threads
    local     a folder on this machine, as a cluster's node sees it
    storage   any fsspec URL
    archive   names in an archive; tar and zip: reading them at random
    stream    a tar read from front to back
    cluster   Ray
    place     which of them a path means
    analysis  find_first_overflow over any of them

Nothing here is imported for a plain local path.
"""
