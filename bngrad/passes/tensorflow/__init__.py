"""What the import of TensorFlow's nodes is made of; the pass is `bngrad.passes.import_tensorflow`."""
