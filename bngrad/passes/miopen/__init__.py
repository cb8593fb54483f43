"""What the import of MIOpen's nodes is made of; the passes are `bngrad.passes.import_miopen_...`."""
