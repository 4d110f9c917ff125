"""TFLite files to Relax modules (`load.from_tflite`): what TVM's importer gets wrong or lacks, corrected."""
