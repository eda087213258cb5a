// Program kwok plays the kubelets of fake nodes: their pods become Ready without running anything.
// What nodes and pods go through are the stages that kwok itself ships.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"
	nodefast "sigs.k8s.io/kwok/kustomize/stage/node/fast"
	nodeheartbeat "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat-with-lease"
	podfast "sigs.k8s.io/kwok/kustomize/stage/pod/fast"
	"sigs.k8s.io/kwok/pkg/config"
	"sigs.k8s.io/kwok/pkg/kwok/cmd"
	"sigs.k8s.io/kwok/pkg/log"
	"sigs.k8s.io/kwok/pkg/utils/signals"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "kwok: %s\n", err)
		os.Exit(1)
	}
}

func run() error {
	stages, err := writeStages()
	if err != nil {
		return err
	}
	os.Args = append(os.Args, "--config="+stages)
	shared := pflag.NewFlagSet("shared", pflag.ContinueOnError)
	shared.ParseErrorsAllowlist.UnknownFlags = true
	shared.Usage = func() {}
	ctx, _ := log.InitFlags(signals.SetupSignalContext(), shared)
	ctx, err = config.InitFlags(ctx, shared)
	if err != nil {
		return err
	}
	command := cmd.NewCommand(ctx)
	command.PersistentFlags().AddFlagSet(shared)
	return command.ExecuteContext(ctx)
}

func writeStages() (string, error) {
	file, err := os.CreateTemp("/run", "kwok-stages-*.yaml")
	if err != nil {
		return "", err
	}
	defer file.Close()
	for _, stage := range []string{
		nodefast.DefaultNodeInit,
		nodeheartbeat.DefaultNodeHeartbeatWithLease,
		podfast.DefaultPodReady,
		podfast.DefaultPodComplete,
		podfast.DefaultPodDelete,
	} {
		if _, err := fmt.Fprintf(file, "---\n%s\n", stage); err != nil {
			return "", err
		}
	}
	return file.Name(), nil
}
