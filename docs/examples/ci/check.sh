#!/bin/sh
# Checks every model in models/ and writes the reports to reports/. Fails if one model fails.
set -u
mkdir -p reports
status=0
bngrad inspect --fail-on hazard --sarif reports/inspect.sarif models/*.onnx || status=$?
for model in models/*.onnx; do
  report=reports/$(basename "$model" .onnx)
  bngrad validate "$model" --against reference --batch-size 2 \
    --junit "$report.xml" --html "$report.html" --sarif "$report.sarif" || status=$?
done
exit "$status"
