# Seconds on two slow cores of the tests that take a minute or more. The longest start first, so that none runs by itself at
# the end while a core idles. A build folder whose tests have run knows their times itself.
set(HOTSWAP_TEST_COSTS
    python_face_training_test 1000 python_face_experts_test 900 python_face_rest_test 800 python_face_liger_test 700
    hub_peers_test 400 pip_test 250 models_parity 200 models 150 training_ranks 200 training 170 cli 160 cli_hub 160 generation 120 examples_test 120 kernelize 100 install_test 90
    adding_a_kernel_test 90 gather_gpu_test 90 serve_clients_test 80 structured_output_test 70 serve_page_test 60)

function(hotswap_test_cost name)  # of a test that the folder of the call has added
  list(FIND HOTSWAP_TEST_COSTS ${name} at)
  if(at GREATER_EQUAL 0)
    math(EXPR at "${at} + 1")
    list(GET HOTSWAP_TEST_COSTS ${at} seconds)
    set_tests_properties(${name} PROPERTIES COST ${seconds})
  endif()
endfunction()
