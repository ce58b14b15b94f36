from apexbench.cli import main

main()
