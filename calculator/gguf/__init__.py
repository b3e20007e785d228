"""GGUF: what a file holds, which file is meant, and how large a mix would be that nobody has made yet.

``read_header(read)`` reads the tables of a file in ranges, ``weights_of(headers)`` adds them up, ``group_files`` and
``choose`` find a repository's file, ``mix_weights(shape, "Q4_K_M")`` computes a file from the model's shape.
"""
