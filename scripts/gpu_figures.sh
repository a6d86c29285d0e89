#!/usr/bin/env bash
# Measures again what needs a GPU: each part by itself, with a time limit and a log of its own.
#
#     scripts/gpu_figures.sh MODEL_DIR RESULTS [PART ...]
#
# MODEL_DIR: SmolLM2-135M-Instruct. RESULTS: folder for logs and result files. Without a PART: all of them, about an hour
# on an H200. PROBE=FILE, TRAIN_PROBE=FILE: programs for --probe of engine_throughput.py and gpu_training.py. The
# environment has what constraints-cuda.txt pins, with trl, reasoning-gym and pytest. If a part fails, the others go on.
set -uo pipefail
model=$1 results=$2
shift 2
mkdir -p "$results"
export PYTHONUNBUFFERED=1
failed=0

# part NAME SECONDS COMMAND...: run it, if it was asked for
part() {
    local name=$1 limit=$2 start=$SECONDS status=0
    [[ " $wanted " == *" $name "* || -z $wanted ]] || return 0
    timeout --kill-after 10 "$limit" "${@:3}" >"$results/$name.log" 2>&1 || status=$?
    echo "$name: $([ $status = 0 ] && echo done || echo "failed ($status)"), $((SECONDS - start)) s" | tee -a "$results/summary"
    [ $status = 0 ] || failed=1
}

bench() { part "$1" "$2" python "benchmarks/$3.py" "${@:4}" --json "$results/$1.json"; }
run_tests() { part "$1" "$2" python -m pytest -rA -W default -m "not ray" --timeout 600 "${@:3}"; }

wanted="$*"
probe=(${PROBE:+--probe "$PROBE"})
backends=(tests/contract/test_native_engine.py tests/contract/test_paged_engine.py tests/backends)
bench gpu_learning 500 gpu_learning --set "model.path=\"$model\""
bench gpu_steps 600 gpu_steps "$model" --runs sync staleflow:4 one-step::never sync:::vllm trl --trl_steps 8 \
    --journals "$results/journals/gpu_steps"
bench gpu_steps_compiled 150 gpu_steps "$model" --runs sync --set trainer.torch_compile=true \
    --journals "$results/journals/gpu_steps_compiled"
bench gpu_training 150 gpu_training --shape 135M ${TRAIN_PROBE:+--probe "$TRAIN_PROBE"}
bench gpu_training_compiled 150 gpu_training --shape 135M --torch_compile
bench gpu_training_1_5b 120 gpu_training --shape 1.5B --max_tokens 16384
bench gpu_training_1_5b_compiled 120 gpu_training --shape 1.5B --max_tokens 16384 --torch_compile
bench gpu_streamed_memory 240 gpu_streamed_memory
bench engine_135m 400 engine_throughput "$model" --systems native vllm vllm-adapter --natural native \
    --kv_tokens 2500000 "${probe[@]}"
bench engine_1_5b 300 engine_throughput 1.5B --systems native vllm --batches 1 32 128 256 "${probe[@]}"
bench engine_7b 300 engine_throughput 7B --systems native vllm --batches 1 32 256 "${probe[@]}"
bench gpu_logprobs 120 gpu_logprobs "$model"
bench schedules_135m 600 gpu_schedules "$model" --journals "$results/journals/schedules_135m"
bench schedules_1_5b 900 gpu_schedules 1.5B --journals "$results/journals/schedules_1_5b"
four=(--set rollout.num_instances=4 --journals "$results/journals/streamed_1_5b")
bench streamed_1_5b_sync 560 gpu_schedules 1.5B --presets sync stage-overlap "${four[@]}"
bench streamed_1_5b_tail 560 gpu_schedules 1.5B --presets tail-batching tail-batching,stream=always rollpacker \
    "${four[@]}"
bench rollpacker 400 gpu_rollpacker --model "$model" --journals "$results/journals/rollpacker"
run_tests tests_gpu 900 tests/gpu
run_tests tests_backends 900 "${backends[@]}"
exit $failed
