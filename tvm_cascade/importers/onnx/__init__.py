"""ONNX files to Relax modules (`load.from_onnx`): what TVM's importer gets wrong or lacks, corrected."""
