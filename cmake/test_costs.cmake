# Seconds on two cores of the tests that take half a minute or more. The longest start first, so that none runs by itself at
# the end while a core idles. A build folder whose tests have run knows their times itself.
set(HOTSWAP_TEST_COSTS
    python_face_rest_test 480 python_face_training_test 300 generation 260 python_face_liger_test 250 python_face_experts_test 240
    cli 240 hub_peers_test 230 training 220 cli_hub 190 models_parity 160 models 140 pip_test 130 training_ranks 120
    python_packages_test 110 engine 90 adding_a_kernel_test 80 install_test 80 gather_gpu_test 80 examples_test 70
    training_curve_test 60 kernel_moe 60 kernel_loss 60 kernel_linear 60 hub 50 kernel_mamba 40 serve 40 serve_clients_test 40
    kernel_decode 30 serve_page_test 30)

function(hotswap_test_cost name)  # of a test that the folder of the call has added
  list(FIND HOTSWAP_TEST_COSTS ${name} at)
  if(at GREATER_EQUAL 0)
    math(EXPR at "${at} + 1")
    list(GET HOTSWAP_TEST_COSTS ${at} seconds)
    set_tests_properties(${name} PROPERTIES COST ${seconds})
  endif()
endfunction()
