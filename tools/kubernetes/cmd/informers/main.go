// Command informers is a small controller as other people write them, on client-go alone: a shared
// informer, leader election, and updates that are repeated on conflict. A test starts it against the
// embedded API and reads what it prints, one line per thing seen:
//
//	leading            it holds the lease
//	synced             the informer has its first list
//	counted            ten increments by each of four workers are in the ConfigMap "counter"
//	event TYPE NAME    a handler was called
//	cache NAME,NAME    what the cache holds when the ConfigMap "last" has appeared; then it ends
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/retry"
)

const (
	namespace = "default"
	counter   = "counter"
	last      = "last"
	workers   = 4
	rounds    = 10
)

var printing sync.Mutex

func say(format string, values ...any) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Printf(format+"\n", values...)
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: informers KUBECONFIG")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "informers:", err)
		os.Exit(1)
	}
}

func run(kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 200, 200
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := lead(ctx, client); err != nil {
		return err
	}
	if err := count(ctx, client); err != nil {
		return err
	}
	say("counted")
	return follow(ctx, client)
}

func lead(ctx context.Context, client kubernetes.Interface) error {
	leading := make(chan struct{})
	identity := fmt.Sprintf("informers-%d", os.Getpid())
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Name: "informers", Namespace: namespace},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		LeaseDuration: 4 * time.Second,
		RenewDeadline: 3 * time.Second,
		RetryPeriod:   500 * time.Millisecond,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(leading) },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return err
	}
	go elector.Run(ctx)
	select {
	case <-leading:
		say("leading")
		return nil
	case <-time.After(20 * time.Second):
		return fmt.Errorf("did not become the leader")
	}
}

func count(ctx context.Context, client kubernetes.Interface) error {
	maps := client.CoreV1().ConfigMaps(namespace)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: counter}, Data: map[string]string{"n": "0"}}
	if _, err := maps.Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return err
	}
	increment := func() error {
		found, err := maps.Get(ctx, counter, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(found.Data["n"])
		if err != nil {
			return err
		}
		found.Data["n"] = strconv.Itoa(n + 1)
		_, err = maps.Update(ctx, found, metav1.UpdateOptions{})
		return err
	}
	backoff := retry.DefaultBackoff
	backoff.Steps = 50
	errors := make(chan error, workers)
	for range workers {
		go func() {
			for range rounds {
				if err := retry.RetryOnConflict(backoff, increment); err != nil {
					errors <- err
					return
				}
			}
			errors <- nil
		}()
	}
	for range workers {
		if err := <-errors; err != nil {
			return err
		}
	}
	found, err := maps.Get(ctx, counter, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if found.Data["n"] != strconv.Itoa(workers*rounds) {
		return fmt.Errorf("the counter is at %s", found.Data["n"])
	}
	return nil
}

func follow(ctx context.Context, client kubernetes.Interface) error {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().ConfigMaps().Informer()
	ended := make(chan struct{})
	name := func(object any) string {
		if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = gone.Obj
		}
		return object.(*corev1.ConfigMap).Name
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			say("event ADDED %s", name(object))
			if name(object) == last {
				close(ended)
			}
		},
		UpdateFunc: func(_, object any) { say("event MODIFIED %s", name(object)) },
		DeleteFunc: func(object any) { say("event DELETED %s", name(object)) },
	})
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return fmt.Errorf("the informer did not sync")
	}
	say("synced")
	select {
	case <-ended:
	case <-time.After(60 * time.Second):
		return fmt.Errorf("%s never came", last)
	}
	var names []string
	for _, object := range informer.GetStore().List() {
		names = append(names, name(object))
	}
	sort.Strings(names)
	say("cache %s", strings.Join(names, ","))
	return nil
}
