// A driver of devices that are none, for tests on real nodes: it publishes the devices gpu-0, gpu-1, ...
// of its node, and keeps a file, named after the claim, for each claim that the kubelet has had prepared.
// All that speaks with kubelet and API server is the library that drivers are made with (k8s.io/dynamic-resource-allocation).
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

type driver struct {
	name, node, prepared string
	devices              map[string]bool
}

// PrepareResourceClaims fails for a device that this node does not have (any more).
func (d *driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		results[claim.UID] = d.prepare(claim)
	}
	return results, nil
}

func (d *driver) prepare(claim *resourceapi.ResourceClaim) (result kubeletplugin.PrepareResult) {
	for _, each := range claim.Status.Allocation.Devices.Results {
		if each.Driver != d.name {
			continue
		}
		if each.Pool != d.node || !d.devices[each.Device] {
			return kubeletplugin.PrepareResult{Err: fmt.Errorf("%s has no device %s/%s", d.node, each.Pool, each.Device)}
		}
		result.Devices = append(result.Devices, kubeletplugin.Device{
			Requests: []string{each.Request}, PoolName: each.Pool, DeviceName: each.Device,
		})
	}
	result.Err = os.WriteFile(d.file(claim.UID), []byte(claim.Namespace+"/"+claim.Name+"\n"), 0o644)
	return result
}

// UnprepareResourceClaims also takes claims that it does not know: the kubelet asks again until it succeeds.
func (d *driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		err := os.Remove(d.file(claim.UID))
		if os.IsNotExist(err) {
			err = nil
		}
		results[claim.UID] = err
	}
	return results, nil
}

func (d *driver) file(claim types.UID) string { return filepath.Join(d.prepared, string(claim)) }

// HandleError has errors of background work; the library tries again.
func (d *driver) HandleError(_ context.Context, err error, message string) {
	fmt.Fprintln(os.Stderr, message+":", err)
}

func run() error {
	d := &driver{devices: map[string]bool{}}
	flag.StringVar(&d.name, "driver", "gpu.example.com", "name of the driver")
	flag.StringVar(&d.node, "node", "", "name of the node")
	flag.StringVar(&d.prepared, "prepared", "", "directory of the files of claims")
	kubeconfig := flag.String("kubeconfig", "", "credentials of the node")
	count := flag.Int("devices", 0, "how many devices there are")
	flag.Parse()

	pool := resourceslice.Slice{}
	for i := range *count {
		name := fmt.Sprintf("gpu-%d", i)
		d.devices[name] = true
		pool.Devices = append(pool.Devices, resourceapi.Device{Name: name})
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	data := filepath.Join(kubeletplugin.KubeletPluginsDir, d.name)
	for _, directory := range []string{data, d.prepared} {
		if err := os.MkdirAll(directory, 0o750); err != nil {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	helper, err := kubeletplugin.Start(ctx, d, kubeletplugin.KubeClient(client),
		kubeletplugin.NodeName(d.node), kubeletplugin.DriverName(d.name))
	if err != nil {
		return err
	}
	defer helper.Stop()
	pools := map[string]resourceslice.Pool{d.node: {Slices: []resourceslice.Slice{pool}}}
	if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: pools}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
